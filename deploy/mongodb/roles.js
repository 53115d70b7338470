// mongosh "mongodb://…/darkroom" deploy/mongodb/roles.js: a role a service, with what it needs and nothing else; made anew
// if it is there. Then give each service a user of its own: db.createUser({ user, pwd, roles: ["darkroom_processor"] }).
const roles = JSON.parse(require("fs").readFileSync("deploy/mongodb/roles.json", "utf8"));
for (const [name, collections] of Object.entries(roles)) {
  const privileges = Object.entries(collections).map(([collection, actions]) => ({
    resource: { db: db.getName(), collection },
    actions,
  }));
  const role = `darkroom_${name}`;
  if (db.getRole(role)) db.updateRole(role, { privileges, roles: [] });
  else db.createRole({ role, privileges, roles: [] });
}
