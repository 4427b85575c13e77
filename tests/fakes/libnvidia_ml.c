/* A stand-in for libnvidia-ml.so.1. The functions below answer; every other name of NVML is added by
 * libraries.py from pynvml's own list and returns NOT_SUPPORTED, since torch crashes on a missing one.
 *
 * FAKE_NVML_INIT   what nvmlInit returns (0)       FAKE_DRIVER     driver release (580.65.06)
 * FAKE_GPUS        how many GPUs (1)               FAKE_CUDA       CUDA version (13000)
 * FAKE_SM          compute capability (90)         FAKE_NAME       name of the GPUs
 * FAKE_NVML_DO     "sleep" or "abort" in nvmlDeviceGetHandleByIndex of the last GPU
 * FAKE_<function>  the code that function returns, for any of them: FAKE_nvmlDeviceGetName=15
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOT_SUPPORTED 3

static int number(const char *name, int fallback) {
  const char *value = getenv(name);
  return value ? atoi(value) : fallback;
}

int fake_code(const char *function, int fallback) {
  char name[160];
  snprintf(name, sizeof name, "FAKE_%s", function);
  return number(name, number("FAKE_NVML_INIT", 0) ? number("FAKE_NVML_INIT", 0) : fallback);
}

static int text(const char *function, char *out, unsigned size, const char *value) {
  int code = fake_code(function, 0);
  if (code == 0) snprintf(out, size, "%s", value);
  return code;
}

static const char *setting(const char *name, const char *fallback) {
  const char *value = getenv(name);
  return value ? value : fallback;
}

int nvmlInit_v2(void) { return fake_code("nvmlInit_v2", 0); }
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }

const char *nvmlErrorString(int code) {
  switch (code) {
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 17: return "GPU access blocked by the operating system";
    case 18: return "Driver/library version mismatch";
    default: return code ? "Unknown Error" : "Success";
  }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
  int code = number("FAKE_nvmlSystemGetDriverVersion", 0);
  if (code == 0) snprintf(out, size, "%s", setting("FAKE_DRIVER", "580.65.06"));
  return code;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
  *out = number("FAKE_CUDA", 13000);
  return fake_code("nvmlSystemGetCudaDriverVersion_v2", 0);
}
int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

int nvmlDeviceGetCount_v2(unsigned *out) {
  *out = (unsigned)number("FAKE_GPUS", 1);
  return fake_code("nvmlDeviceGetCount_v2", 0);
}
int nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
  int last = number("FAKE_GPUS", 1) - 1;
  const char *deed = getenv("FAKE_NVML_DO");
  if ((int)index > last) return 2;
  if (deed && (int)index == last) {
    if (!strcmp(deed, "sleep")) sleep(3600);
    if (!strcmp(deed, "abort")) abort();
  }
  *out = (void *)((size_t)index + 1);
  return fake_code("nvmlDeviceGetHandleByIndex_v2", 0);
}
int nvmlDeviceGetHandleByIndex(unsigned index, void **out) {
  return nvmlDeviceGetHandleByIndex_v2(index, out);
}

int nvmlDeviceGetName(void *gpu, char *out, unsigned size) {
  (void)gpu;
  return text("nvmlDeviceGetName", out, size, setting("FAKE_NAME", "NVIDIA Fake"));
}

int nvmlDeviceGetUUID(void *gpu, char *out, unsigned size) {
  char uuid[64];
  snprintf(uuid, sizeof uuid, "GPU-00000000-0000-4000-8000-%012x", (unsigned)(size_t)gpu);
  return text("nvmlDeviceGetUUID", out, size, uuid);
}

int nvmlDeviceGetIndex(void *gpu, unsigned *out) {
  *out = (unsigned)(size_t)gpu - 1;
  return fake_code("nvmlDeviceGetIndex", 0);
}

int nvmlDeviceGetMinorNumber(void *gpu, unsigned *out) { return nvmlDeviceGetIndex(gpu, out); }

int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) {
  (void)gpu;
  *major = number("FAKE_SM", 90) / 10;
  *minor = number("FAKE_SM", 90) % 10;
  return fake_code("nvmlDeviceGetCudaComputeCapability", 0);
}

struct memory { unsigned long long total, free, used; };

int nvmlDeviceGetMemoryInfo(void *gpu, struct memory *out) {
  (void)gpu;
  out->total = 80ull << 30;
  out->used = (unsigned long long)number("FAKE_USED_MIB", 1024) << 20;
  out->free = out->total - out->used;
  return fake_code("nvmlDeviceGetMemoryInfo", 0);
}

struct pci {
  char legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *out) {
  memset(out, 0, sizeof *out);
  out->bus = 0x10 + (unsigned)(size_t)gpu - 1;
  out->pci_device_id = 0x233510de;
  snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
  return fake_code("nvmlDeviceGetPciInfo_v3", 0);
}

int nvmlDeviceGetTemperature(void *gpu, unsigned sensor, unsigned *out) {
  (void)gpu;
  (void)sensor;
  *out = 40;
  return fake_code("nvmlDeviceGetTemperature", 0);
}

int nvmlDeviceGetComputeMode(void *gpu, unsigned *out) {
  (void)gpu;
  *out = (unsigned)number("FAKE_COMPUTE_MODE", 0);
  return fake_code("nvmlDeviceGetComputeMode", 0);
}

int nvmlDeviceGetRemappedRows(void *gpu, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
  (void)gpu;
  *corrected = 0;
  *uncorrected = (unsigned)number("FAKE_REMAPPED", 0);
  *pending = (unsigned)number("FAKE_REMAP_PENDING", 0);
  *failed = (unsigned)number("FAKE_REMAP_FAILED", 0);
  return fake_code("nvmlDeviceGetRemappedRows", 0);
}

int nvmlDeviceGetMigMode(void *gpu, unsigned *current, unsigned *pending) {
  (void)gpu;
  *current = *pending = (unsigned)number("FAKE_MIG", 0);
  return fake_code("nvmlDeviceGetMigMode", 0);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *gpu, unsigned index, void **out) {
  (void)gpu;
  (void)index;
  (void)out;
  return fake_code("nvmlDeviceGetMigDeviceHandleByIndex", 6);
}
