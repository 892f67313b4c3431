# Packages
.PHONY: packages image image-reconcile test-image test-image-reconcile test-packages test-newcomer soak-packages

NFPM := var/packages/tools/nfpm
# The newest whose modules the proxy has all of.
NFPM_VERSION := v2.43.4
PACKAGES ?= rlmm-daemon rlmm-kafka-plugin rlmm-reconcile

packages: install plugin $(NFPM) ## deb and rpm in dist/packages, with an SBOM each; signed by RLMM_SIGNING_KEY=FILE
	rm -rf dist/packages
	$(BIN)/python -m hatchling build -t wheel -d dist/packages
	$(BIN)/python deploy/packages/build.py --wheel dist/packages/*.whl --into dist/packages $(PACKAGES)
	rm dist/packages/*.whl

$(NFPM): make/packages.mk
	GOBIN=$(CURDIR)/$(@D) go install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)
	@touch $@

test-packages: install plugin $(NFPM) ## Packages installed, upgraded and removed in a copy of this system (needs root)
	RLMM_TEST_PACKAGES=1 $(BIN)/pytest -q $(PYTEST_ARGS) tests/packages

test-newcomer: install plugin kafka-archive $(NFPM) ## docs/install.md typed on a host with systemd and a broker, up to a read from the tier
	RLMM_TEST_PACKAGES=1 RLMM_TEST_KAFKA=1 $(BIN)/pytest -q $(PYTEST_ARGS) tests/packages/test_newcomer.py

VERSION = $(shell $(BIN)/python -c 'import rlmm_daemon; print(rlmm_daemon.__version__)')

image: PACKAGES := rlmm-daemon rlmm-kafka-plugin
image: packages ## OCI image of daemon and plugin in dist/images (needs root, mmdebstrap, umoci)
	deploy/image/build.sh dist/packages $(VERSION) dist/images/rlmm-daemon '' $(PACKAGES)

image-reconcile: PACKAGES := rlmm-daemon rlmm-reconcile
image-reconcile: packages ## The same of the nightly job, with its JRE and Spark
	deploy/image/build.sh dist/packages $(VERSION) dist/images/rlmm-reconcile openjdk-17-jre-headless $(PACKAGES)

test-image: image ## The image run as a pod would run it (needs root, runc)
	RLMM_TEST_IMAGE=$(CURDIR)/dist/images/rlmm-daemon $(BIN)/pytest -q $(PYTEST_ARGS) tests/image

test-image-reconcile: ## The same, and a night in the other image; first: make image-reconcile, then make image
	RLMM_TEST_IMAGE=$(CURDIR)/dist/images/rlmm-daemon RLMM_TEST_IMAGE_RECONCILE=$(CURDIR)/dist/images/rlmm-reconcile \
	  $(BIN)/pytest -q $(PYTEST_ARGS) tests/image

BARE := var/packages/bare

soak-packages: packages test-newcomer $(BARE) ## The same in a bare Debian (needs mmdebstrap), with the nightly job's package
	RLMM_TEST_PACKAGES=1 RLMM_PACKAGES_ROOT=$(CURDIR)/$(BARE) RLMM_PACKAGES=$(CURDIR)/dist/packages \
	  $(BIN)/pytest -q --timeout 1800 $(PYTEST_ARGS) tests/packages

$(BARE):
	@mkdir -p $(@D)
	mmdebstrap --quiet --variant=minbase --include=python3.11,passwd,rpm bookworm $@
