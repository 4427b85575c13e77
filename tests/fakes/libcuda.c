/* A stand-in for libcuda.so.1: starts, fails, hangs or dies as the environment says.
 *
 * FAKE_CUINIT   what cuInit and everything after it returns (0)
 * FAKE_CUDA     what cuDriverGetVersion tells (13000)
 * FAKE_GPUS     how many devices (1)
 * FAKE_SM       their compute capability (90)
 * FAKE_NAME     their name
 * FAKE_CUDA_DO  "sleep" or "abort": what cuInit does instead of answering
 * Compiled with -DALWAYS=803 it returns that, whatever the environment says.
 *
 * With a failing cuInit the real torch prints its real text for that code. With a working one torch
 * asks for functions that are not here and crashes, which is a test of its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int number(const char *name, int fallback) {
  const char *value = getenv(name);
  return value ? atoi(value) : fallback;
}

static int answer(void) {
#ifdef ALWAYS
  return ALWAYS;
#else
  return number("FAKE_CUINIT", 0);
#endif
}

int cuInit(unsigned flags) {
  const char *deed = getenv("FAKE_CUDA_DO");
  (void)flags;
  if (deed && !strcmp(deed, "sleep")) sleep(3600);
  if (deed && !strcmp(deed, "abort")) abort();
  if (deed && !strcmp(deed, "noise")) { puts("noise on standard output"); fflush(stdout); }
  return answer();
}

int cuDriverGetVersion(int *version) {
  *version = number("FAKE_CUDA", 13000);
  return 0;
}

int cuDeviceGetCount(int *count) {
  *count = number("FAKE_GPUS", 1);
  return answer();
}

int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal < number("FAKE_GPUS", 1) ? answer() : 101;
}

int cuDeviceGetName(char *name, int size, int device) {
  const char *wanted = getenv("FAKE_NAME");
  snprintf(name, (size_t)size, "%s", wanted ? wanted : "NVIDIA Fake");
  return device < number("FAKE_GPUS", 1) ? 0 : 101;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = (size_t)80 << 30;
  return device < number("FAKE_GPUS", 1) ? 0 : 101;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 75: *value = number("FAKE_SM", 90) / 10; return 0;
    case 76: *value = number("FAKE_SM", 90) % 10; return 0;
    case 33: *value = 0x10 + device; return 0;
    case 34: case 50: case 20: *value = 0; return 0;
    default: return 1;
  }
}

int stub(void) { return answer(); }

int cuGetProcAddress_v2(const char *symbol, void **found, int version, unsigned long long flags,
                        int *status) {
  (void)version;
  (void)flags;
  if (!strcmp(symbol, "cuInit")) *found = (void *)cuInit;
  else if (!strcmp(symbol, "cuDriverGetVersion")) *found = (void *)cuDriverGetVersion;
  else if (!strcmp(symbol, "cuDeviceGetCount")) *found = (void *)cuDeviceGetCount;
  else if (!strcmp(symbol, "cuGetProcAddress")) *found = (void *)cuGetProcAddress_v2;
  else *found = (void *)stub;
  if (status) *status = 0;
  return 0;
}

int cuGetProcAddress(const char *symbol, void **found, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(symbol, found, version, flags, 0);
}

int cuGetExportTable(const void **table, const void *id) {
  (void)table;
  (void)id;
  return 1;
}
