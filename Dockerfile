# An image to train with: docs/jobs.md. For TPUs: docker build --build-arg JAX="jax[tpu]" .
FROM python:3.12-slim
ARG JAX="jax[cuda13]"
WORKDIR /app
# First what seldom changes, so that a new commit is a small layer.
COPY pyproject.toml README.md LICENSE constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt . "$JAX" && pip uninstall -y transformer
COPY . .
# There is no .git in the image: results name the commit that is given here.
ARG GIT_COMMIT=unknown
ENV GIT_COMMIT=$GIT_COMMIT PYTHONUNBUFFERED=1
CMD ["python", "train.py", "--help"]
