/* Where fields lie in records that Python reads from the files of a process, for a test that compares. */
#include "ring.h"

typedef struct {
    const char *record, *field;
    size_t offset;
} Place;

#define FIELD(type, name) {#type, #name, offsetof(type, name)}
#define SIZE(type) {#type, "", sizeof(type)}

static const Place places[] = {
    FIELD(Header, version),
    FIELD(Header, slots),
    FIELD(Header, track),
    FIELD(Header, alive),
    FIELD(Header, tid),
    FIELD(Header, head),
    FIELD(Header, reserve),
    FIELD(Header, produced),
    FIELD(Header, tail),
    FIELD(Header, serial),
    {"Header", "", HEADER},
    FIELD(Control, recording),
    FIELD(Control, closed),
    FIELD(Control, at_risk),
    SIZE(Control),
    FIELD(Track, tid),
    FIELD(Track, kind),
    FIELD(Track, parent),
    FIELD(Track, name),
    FIELD(Track, id),
    SIZE(Track),
    FIELD(Frame, child),
    FIELD(Frame, id),
    FIELD(Frame, name),
    FIELD(Frame, category),
    FIELD(Frame, flags),
    FIELD(Frame, period),
    SIZE(Frame),
    FIELD(Stack, track),
    FIELD(Stack, depth),
    FIELD(Stack, index),
    FIELD(Stack, pushes),
    FIELD(Stack, parent),
    FIELD(Stack, owner),
    FIELD(Stack, frames),
    SIZE(Stack),
    FIELD(Event, dur),
    FIELD(Event, id),
    FIELD(Event, parent),
    FIELD(Event, args_at),
    FIELD(Event, args_len),
    FIELD(Event, name),
    FIELD(Event, track),
    FIELD(Event, step),
    FIELD(Event, category),
    FIELD(Event, kind),
    FIELD(Event, flags),
    SIZE(Event),
};

PyObject *layouts_py_layouts(PyObject *self, PyObject *unused) {
    PyObject *all = PyDict_New();
    for (size_t i = 0; all && i < sizeof places / sizeof *places; i++) {
        const Place *place = &places[i];
        PyObject *offset = PyLong_FromSize_t(place->offset), *key = Py_BuildValue("(ss)", place->record, place->field);
        if (!offset || !key || PyDict_SetItem(all, key, offset) < 0) Py_CLEAR(all);
        Py_XDECREF(offset);
        Py_XDECREF(key);
    }
    return all;
}
