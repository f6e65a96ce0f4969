# Images of the trainer and of the self-hosted server (README.md, "In containers"):
#   docker build --target trainer -t harbortrainer .
#   docker build --target server -t harbortrainer-server [--build-arg LOCK=requirements-cuda.lock] .
# BASE: an image with Python 3.12 to 3.14 and Debian's packages.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS trainer
RUN command -v git >/dev/null || { apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*; }
COPY requirements.lock /tmp/requirements.lock
RUN python3 -m venv /opt/harbortrainer \
 && /opt/harbortrainer/bin/python -m pip install --no-cache-dir --no-deps --require-hashes -r /tmp/requirements.lock
COPY . /source
RUN /opt/harbortrainer/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation /source && rm -rf /source
ENV PATH=/opt/harbortrainer/bin:$PATH
ENTRYPOINT ["harbortrainer"]
CMD ["--help"]

FROM trainer AS server
ARG LOCK=requirements.lock
RUN cd /opt/harbortrainer/share/harbortrainer/server \
 && python3 -m venv .venv \
 && .venv/bin/python -m pip install --no-cache-dir --no-deps --require-hashes -r "$LOCK"
# others reach it, so it asks for a key: SKYRL_TX_API_KEY, or the one that it makes in /state/api_key
ENV SKYRL_TX_HOST=0.0.0.0 SKYRL_TX_STATE=/state
VOLUME /state
EXPOSE 8000
ENTRYPOINT ["harbortrainer", "server", "start"]
