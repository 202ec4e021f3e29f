#!/bin/sh
# Build the image with docker, podman or buildah: deploy/image/build.sh [TAG] [BASE]; CONTEXT=directory only makes the context.
#
# The context has the wheel of this checkout and, by hash, the wheels that it needs, for the Python of BASE: PYTHON_VERSION=3.13.
set -eu
cd "$(dirname "$0")/../.."
tag=${1:-broadsheet:$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
base=${2:-docker.io/library/python:3.13-slim}
version=${PYTHON_VERSION:-3.13}
uv=.venv/bin/uv
[ -x "$uv" ] || { echo "no $uv: run \`make setup\` first" >&2; exit 1; }

context=${CONTEXT:-$(mktemp -d)}
[ -n "${CONTEXT:-}" ] || trap 'rm -rf "$context"' EXIT
mkdir -p "$context/wheels"
"$uv" build --quiet --wheel --out-dir "$context/wheels" .
rm -f "$context/wheels/.gitignore"
# For the image's Python alone: pip would judge the file's conditions by this machine's.
"$uv" pip compile --quiet --no-header --no-annotate --no-emit-index-url --generate-hashes --no-deps \
    --python-version "$version" --python-platform linux -o "$context/requirements.txt" requirements/image.txt
.venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version "$version" \
    --require-hashes --dest "$context/wheels" -r "$context/requirements.txt"
.venv/bin/cyclonedx-py requirements "$context/requirements.txt" --output-reproducible --output-file "$context/sbom.cdx.json"
cp deploy/image/Dockerfile deploy/image/healthcheck.py "$context/"
[ -z "${CONTEXT:-}" ] || exit 0

for builder in docker podman buildah; do
    command -v "$builder" >/dev/null 2>&1 || continue
    exec "$builder" build --build-arg "BASE=$base" --tag "$tag" "$context"
done
echo "none of docker, podman and buildah is on PATH: install one, or make the context alone with CONTEXT=directory" >&2
exit 1
