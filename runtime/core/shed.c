/* What goes first when there is no room: a level for each event. The order is made in Python (runtime/export/drop_priority.py). */
#include "shed.h"

Shedding g_shedding = {.kept = 0, .share = {SHED_WHOLE - SHED_WHOLE / 16, SHED_WHOLE}};

static bool is_kept(const Shedding *order, uint32_t name) {
    const String *s = strings_get(name);
    for (uint32_t i = 0; i < order->prefixes; i++)
        if (s->len >= order->prefix_len[i] && !memcmp(s->text, order->prefix[i], order->prefix_len[i])) return true;
    return false;
}

uint32_t shed_level(const Shedding *order, const Event *event) {
    uint32_t rank = event->category < FIRST_NAME ? order->rank[event->category] : 0;
    if (event->kind == KIND_STEP || event->kind == KIND_GAP) return order->kept + 1;
    if (!rank || is_kept(order, event->name)) return order->kept;
    return 2 * (rank - 1) + (event->dur >= order->small_ns);
}

/* (categories, small_ns, prefixes): what goes first is first. Tuples of str. */
static int parse(PyObject *args, Shedding *order) {
    PyObject *categories, *prefixes;
    long long small_ns;
    if (!PyArg_ParseTuple(args, "O!LO!", &PyTuple_Type, &categories, &small_ns, &PyTuple_Type, &prefixes)) return -1;
    if (PyTuple_GET_SIZE(categories) > SHED_CATEGORIES || PyTuple_GET_SIZE(prefixes) > SHED_PREFIXES) {
        PyErr_Format(PyExc_ValueError, "at most %d categories and %d prefixes", SHED_CATEGORIES, SHED_PREFIXES);
        return -1;
    }
    memset(order, 0, sizeof *order);
    order->small_ns = small_ns;
    order->kept = 2 * (uint32_t)PyTuple_GET_SIZE(categories);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(categories); i++) {
        uint16_t category;
        if (strings_category_object(PyTuple_GET_ITEM(categories, i), &category) < 0) return -1;
        if (category) order->rank[category] = (uint8_t)(i + 1); /* 0: the table is full, and so no event has it */
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(prefixes); i++) {
        Py_ssize_t len;
        const char *text = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(prefixes, i), &len);
        if (!text) return -1;
        if (len > (Py_ssize_t)sizeof order->prefix[0]) len = sizeof order->prefix[0];
        memcpy(order->prefix[i], text, (size_t)len);
        order->prefix_len[i] = (uint8_t)len;
        order->prefixes++;
    }
    return 0;
}

/* Before a session is opened; rings of an open one keep their order. */
PyObject *shed_py_set(PyObject *self, PyObject *args) {
    PyObject *order_args, *shares;
    Shedding order;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &order_args, &PyTuple_Type, &shares)) return NULL;
    if (parse(order_args, &order) < 0) return NULL;
    if (PyTuple_GET_SIZE(shares) != order.kept + 2)
        return PyErr_Format(PyExc_ValueError, "%u shares are wanted, got %zd", order.kept + 2, PyTuple_GET_SIZE(shares));
    for (uint32_t i = 0; i < order.kept + 2; i++) {
        double share = PyFloat_AsDouble(PyTuple_GET_ITEM(shares, i));
        if (PyErr_Occurred()) return NULL;
        order.share[i] = (uint32_t)((share < 0 ? 0 : share > 1 ? 1 : share) * SHED_WHOLE);
    }
    g_shedding = order;
    Py_RETURN_NONE;
}

PyObject *shed_py_levels(PyObject *self, PyObject *args) {
    PyObject *block, *order_args;
    Shedding order;
    Py_buffer events;
    if (!PyArg_ParseTuple(args, "OO!", &block, &PyTuple_Type, &order_args) || parse(order_args, &order) < 0) return NULL;
    if (PyObject_GetBuffer(block, &events, PyBUF_C_CONTIGUOUS) < 0) return NULL;
    size_t count = (size_t)events.len / sizeof(Event);
    PyObject *levels = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count);
    if (levels) {
        char *level = PyBytes_AS_STRING(levels);
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < count; i++) {
            Event event; /* a block of a backend may lie anywhere */
            memcpy(&event, (const char *)events.buf + i * sizeof event, sizeof event);
            level[i] = (char)shed_level(&order, &event);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&events);
    return levels;
}
