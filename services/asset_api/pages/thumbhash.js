// ThumbHash: some 25 bytes that show what a picture looks like before it is there (https://evanw.github.io/thumbhash/).
// Lightness, two differences of colour and, if there is any, transparency: each a mean and its lowest frequencies.

const SHORTEST = 5;

// The pixels, RGBA, as ImageData of this size; null for what is no hash.
export function decode(base64, width, height) {
  const bytes = bytesOf(base64);
  if (bytes.length < SHORTEST) return null;
  const first = bytes[0] | (bytes[1] << 8) | (bytes[2] << 16);
  const second = bytes[3] | (bytes[4] << 8);
  const clear = Boolean(first >> 23);
  const longer = clear ? 5 : 7;
  const [across, down] = second >> 15 ? [longer, second & 7] : [second & 7, longer];

  let place = 2 * (clear ? SHORTEST + 1 : SHORTEST);
  const next = () => { const byte = bytes[place >> 1] ?? 0; return (place++ & 1 ? byte >> 4 : byte & 15) / 7.5 - 1; };
  const channel = (mean, scale, columns, rows) => {
    const waves = [];
    for (let y = 0; y < rows; y += 1) {
      for (let x = y ? 0 : 1; x * rows < columns * (rows - y); x += 1) waves.push([x, y, 2 * scale * next()]);
    }
    return (u, v) => waves.reduce((sum, [x, y, size]) => sum + size * wave(u, x) * wave(v, y), mean);
  };
  const light = channel((first & 63) / 63, ((first >> 18) & 31) / 31, Math.max(3, across), Math.max(3, down));
  // Colours are 1.25 times as strong as they are written down: what is rounded away would else leave them pale.
  const yellowBlue = channel(((first >> 6) & 63) / 31.5 - 1, (((second >> 3) & 63) / 63) * 1.25, 3, 3);
  const redGreen = channel(((first >> 12) & 63) / 31.5 - 1, (((second >> 9) & 63) / 63) * 1.25, 3, 3);
  const alpha = clear ? channel((bytes[5] & 15) / 15, (bytes[5] >> 4) / 15, 5, 5) : () => 1;

  const pixels = new ImageData(width, height);
  for (let row = 0, at = 0; row < height; row += 1) {
    for (let column = 0; column < width; column += 1, at += 4) {
      const [u, v] = [(column + 0.5) / width, (row + 0.5) / height];
      const [l, p, q] = [light(u, v), yellowBlue(u, v), redGreen(u, v)];
      const blue = l - (2 / 3) * p;
      const red = (3 * l - blue + q) / 2;
      pixels.data.set([red, red - q, blue, alpha(u, v)].map((part) => 255 * Math.min(1, Math.max(0, part))), at);
    }
  }
  return pixels;
}

const wave = (place, count) => Math.cos(Math.PI * count * place);

function bytesOf(base64) {
  try {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  } catch {
    return new Uint8Array(); // not base64
  }
}
