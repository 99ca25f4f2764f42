/* Stands for the library of NVIDIA's driver: the symbols that are asked for, with two devices, the second of which
   supports less. Numbers grow with each call, so that a reading differs from the one before. */
#include <stdlib.h>

typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;

static int begun, calls;

static int broken(void) { return getenv("TEST_NVML_BROKEN") != NULL; }

int nvmlInit_v2(void) { if (broken()) return 9; begun++; return 0; }
int nvmlShutdown(void) { begun--; return 0; }
int begun_now(void) { return begun; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : code == 3 ? "Not Supported" : "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return begun > 0 ? 0 : 1; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
    static int devices[2];
    if (index > 1) return 2;
    devices[index] = (int)index;
    *device = &devices[index];
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, Utilization *found)
{
    found->gpu = 40 + 10 * *(int *)device;
    found->memory = 7;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *found)
{
    found->total = 80ull << 30;
    found->used = (10ull << 30) + (unsigned long long)++calls;
    found->free = found->total - found->used;
    return 0;
}

int nvmlDeviceGetPcieThroughput(void *device, int counter, unsigned int *value)
{
    if (*(int *)device == 1) return 3;
    *value = counter ? 2500 : 1500;
    return 0;
}

typedef struct {
    unsigned int field, scope;
    long long timestamp, latency;
    unsigned int type;
    int result;
    union { double number; unsigned long long count; } value;
} Field;

int nvmlDeviceGetFieldValues(void *device, int count, Field *fields)
{
    static unsigned long long kib;
    for (int i = 0; i < count; i++) {
        fields[i].result = *(int *)device == 1 || fields[i].scope != 0xffffffffu ? 3 : 0;
        fields[i].value.count = fields[i].field == 138 ? (kib += 4096) : fields[i].field == 139 ? 7 : 0;
    }
    return 0;
}
