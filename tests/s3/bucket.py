"""Waits up to 30 s for the S3 server of ``AWS_ENDPOINT_URL``, and makes the bucket ``bucket``."""

import sys
import time

import boto3
import botocore.config
import botocore.exceptions

once = botocore.config.Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
last: Exception | None = None
for _ in range(300):
    try:
        boto3.client("s3", config=once).create_bucket(Bucket="bucket")
        sys.exit()
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        last = error
    time.sleep(0.1)
sys.exit(f"error: no bucket could be made within 30 s: {last}")
