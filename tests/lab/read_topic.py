"""Prints every record of a topic's partition 0 as `key,payload` and its headers: read_topic.py ADDRESS TOPIC"""

import sys

from confluent_kafka import Consumer, TopicPartition

address, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": address, "group.id": "read-topic", "enable.auto.commit": False})
low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
consumer.assign([TopicPartition(topic, 0, low)])
for offset in range(low, high):
    message = consumer.poll(30)
    if message is None:
        sys.exit(f"no record came at offset {offset} of {high}")
    if message.error():
        sys.exit(str(message.error()))
    headers = " ".join(f"{name}={value.decode()}" for name, value in message.headers() or [])
    print(f"{message.key().decode()},{message.value().decode()} {headers}")
consumer.close()
