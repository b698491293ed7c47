# Software and files of the project, for NVIDIA GPUs. app.py takes the software to Modal; for Kubernetes and others:
#   docker build -t REGISTRY/nanojaxgpt . && docker push REGISTRY/nanojaxgpt
FROM python:3.12-slim
# With these the GPUs of a cluster's machines reach each other.
RUN apt-get update && apt-get install -y --no-install-recommends libibverbs1 ibverbs-providers \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /root
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt "jax[cuda13]"
ENV PYTHONPATH=/root
ENV PYTHONUNBUFFERED=1
COPY . .
