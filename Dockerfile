# Everburn in a container: for CPUs, or with the build argument VARIANT=cuda for NVIDIA GPUs too, with NCCL.
#
#   docker build --tag registry.example/everburn:latest .
#   docker build --build-arg VARIANT=cuda --tag registry.example/everburn:cuda .
#   docker run --rm registry.example/everburn:latest train mnist --ranks 2 --data synthetic
#   docker run --rm --gpus all registry.example/everburn:cuda train mnist --gpus 2
#
# docs/launching/job.yaml runs it in Kubernetes.

ARG VARIANT=cpu

FROM rust:1.95-bookworm AS build
ARG VARIANT
WORKDIR /source
COPY . .
# With `cuda`, the build script of LLVM's bundle downloads it.
RUN if [ "$VARIANT" = cuda ]; then features="--features cuda"; fi; \
    cargo install --locked --path crates/everburn --root /installed $features

FROM debian:bookworm-slim AS cpu

# The driver comes from the host (`--gpus all`); NCCL is opened at run time.
FROM nvidia/cuda:12.9.1-base-ubuntu24.04 AS cuda
RUN apt-get update \
    && apt-get install --yes --no-install-recommends 'libnccl2=*+cuda12.9' \
    && rm -rf /var/lib/apt/lists/*

FROM ${VARIANT}
COPY --from=build /installed/bin/everburn /usr/local/bin/everburn
WORKDIR /work
ENTRYPOINT ["everburn"]
CMD ["--help"]
