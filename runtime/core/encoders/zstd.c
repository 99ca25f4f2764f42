/* zstd, as the system has it: `libzstd.so.1` is loaded when it is first needed. Its functions are a stable interface. */
#include "encoders/zstd.h"
#include "core.h"
#include <dlfcn.h>

#define LEVEL 1 /* higher ones save 0 to 4 % of the bytes and cost 2 to 40 ns an event */

typedef struct CompressionContext CompressionContext;
static struct {
    size_t (*bound)(size_t);
    CompressionContext *(*create)(void);
    size_t (*compress)(CompressionContext *, void *, size_t, const void *, size_t, int);
    size_t (*decompress)(void *, size_t, const void *, size_t);
    unsigned (*is_error)(size_t);
} library;
static CompressionContext *context;
static bool loaded;

static void load(void) {
    void *handle = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) return;
    struct {
        const char *name;
        void *to;
    } wanted[] = {{"ZSTD_compressBound", &library.bound},
                  {"ZSTD_createCCtx", &library.create},
                  {"ZSTD_compressCCtx", &library.compress},
                  {"ZSTD_decompress", &library.decompress},
                  {"ZSTD_isError", &library.is_error}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!(*(void **)wanted[i].to = dlsym(handle, wanted[i].name))) return;
    context = library.create();
    loaded = context != NULL;
}

static bool available(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return loaded;
}

size_t zstd_bound(size_t len) { return available() ? library.bound(len) : 0; }

size_t zstd_compress(void *to, size_t room, const void *from, size_t len) {
    if (!available()) return 0;
    size_t size = library.compress(context, to, room, from, len, LEVEL);
    return library.is_error(size) ? 0 : size;
}

static bool decompress(void *to, size_t len, const void *from, size_t stored) {
    if (!available()) return false;
    size_t size = library.decompress(to, len, from, stored);
    return !library.is_error(size) && size == len;
}

PyObject *zstd_py_available(PyObject *self, PyObject *unused) { return PyBool_FromLong(available()); }

PyObject *zstd_py_decompress(PyObject *self, PyObject *args) {
    Py_buffer from;
    Py_ssize_t len;
    if (!PyArg_ParseTuple(args, "y*n", &from, &len)) return NULL;
    PyObject *to = PyBytes_FromStringAndSize(NULL, len);
    bool whole = false;
    if (to) {
        Py_BEGIN_ALLOW_THREADS
        whole = decompress(PyBytes_AS_STRING(to), (size_t)len, from.buf, (size_t)from.len);
        Py_END_ALLOW_THREADS
    }
    if (to && !whole) {
        Py_CLEAR(to);
        PyErr_SetString(PyExc_ValueError,
                        available() ? "a frame is damaged: zstd cannot read it" : "libzstd.so.1 is missing: install libzstd1");
    }
    PyBuffer_Release(&from);
    return to;
}
