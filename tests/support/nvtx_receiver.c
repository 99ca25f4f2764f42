/* Receives what a program tells NVTX: a library that NVTX_INJECTION64_PATH names, as NVIDIA's tools are. It appends a line for each
   call to the file that TEST_NVTX_LOG names. Layouts and numbers are those of NVTX 3 (nvtxTypes.h, nvtxDetail/nvtxTypes.h). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLBACKS = 1, CORE2 = 5 };
enum { MARK = 1, RANGE_START = 2, RANGE_END = 3, PUSH = 4, POP = 5, REGISTER_STRING = 10, DOMAIN_CREATE = 12 };
enum { ASCII = 1, REGISTERED = 3 };

typedef void (*Function)(void);
typedef const void *(*ExportTable)(uint32_t id);
typedef struct {
    size_t size;
    int (*functions)(int module, Function ***table, unsigned int *count);
} Callbacks;
typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
} Attributes;

static uint64_t ranges;

static void note(const char *what, const char *domain, const char *message, uint64_t range) {
    FILE *file = fopen(getenv("TEST_NVTX_LOG"), "a");
    if (!file) return;
    fprintf(file, "%s|%s|%s|%llu\n", what, domain ? domain : "", message, (unsigned long long)range);
    fclose(file);
}

static const char *text(const Attributes *attributes) {
    int known = attributes->message_type == ASCII || attributes->message_type == REGISTERED;
    return known && attributes->message ? attributes->message : "";
}

/* The handles of domains and strings are copies of their names. */
static void *domain_create(const char *name) { return strdup(name); }
static void *register_string(void *domain, const char *string) { return strdup(string); }
static void mark(void *domain, const Attributes *attributes) { note("mark", domain, text(attributes), 0); }
static uint64_t range_start(void *domain, const Attributes *attributes) {
    uint64_t range = __atomic_add_fetch(&ranges, 1, __ATOMIC_RELAXED);
    note("start", domain, text(attributes), range);
    return range;
}
static void range_end(void *domain, uint64_t range) { note("end", domain, "", range); }
static int push(void *domain, const Attributes *attributes) {
    note("push", domain, text(attributes), 0);
    return 0;
}
static int pop(void *domain) {
    note("pop", domain, "", 0);
    return 0;
}

int InitializeInjectionNvtx2(ExportTable get) {
    const Callbacks *callbacks = get(CALLBACKS);
    Function **table;
    unsigned int count;
    if (!callbacks || !callbacks->functions(CORE2, &table, &count) || count <= DOMAIN_CREATE) return 0;
    *table[MARK] = (Function)mark;
    *table[RANGE_START] = (Function)range_start;
    *table[RANGE_END] = (Function)range_end;
    *table[PUSH] = (Function)push;
    *table[POP] = (Function)pop;
    *table[REGISTER_STRING] = (Function)register_string;
    *table[DOMAIN_CREATE] = (Function)domain_create;
    return 1;
}
