# Installs the project into .venv on a machine of SkyPilot's, with JAX for the GPU or TPU that is there.
set -e
export PATH="$HOME/.local/bin:$PATH"
command -v uv || curl -LsSf https://astral.sh/uv/install.sh | sh
uv venv --allow-existing --python 3.12 .venv
if driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader); then
  # CUDA 13 needs a driver from 580 on: docs.jax.dev/en/latest/installation.html
  if [ "${driver%%.*}" -ge 580 ]; then jax="jax[cuda13]"; else jax="jax[cuda12]"; fi
else
  jax="jax[tpu]"
fi
uv pip install --python .venv -r requirements.txt "$jax"
