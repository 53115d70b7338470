"""From S3's notifications on SQS to AssetUploaded on Kafka, as a Lambda function or as a long-polling container."""
