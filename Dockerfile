# The operator's image: one static-looking root with the binary, the libraries that it links, and the certificates that
# stores are trusted by. No shell, no package manager, nobody but an unprivileged user.
#
#   docker build --tag freshet:0.1.0 .

FROM docker.io/library/rust:1.95-bookworm AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends protobuf-compiler libprotobuf-dev mold \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# The linker of .cargo/config.toml is the one installed above.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/target \
    CARGO_TARGET_DIR=/target cargo build --locked --release --bin freshet \
 && cp /target/release/freshet /freshet

# glibc, libgcc, certificates, time zones and the user `nonroot` (65532), and nothing else.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /freshet /usr/local/bin/freshet
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/freshet"]
CMD ["--help"]
