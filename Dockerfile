# A CPU image with sds and its demo: docker build -t sds . && docker run --rm sds
# Your own data: docker run --rm -v "$PWD":/data sds sds peek /data/photos
FROM python:3.11-slim
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
WORKDIR /app
# a compiler, for what resizes pixels
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
# torch first, by the constraints: a looser requirement pulls gigabytes of CUDA packages, and this layer seldom changes
COPY .ci/constraints.txt .ci/
RUN pip install -c .ci/constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install -c .ci/constraints.txt '.[demo,video,audio]' && cd / && python -c 'import sds._files, sds.transforms._native'
# not root: the cache and the fetch server's socket lie below the home folder
RUN useradd --create-home trainer
USER trainer
WORKDIR /home/trainer
CMD ["sds", "demo"]
