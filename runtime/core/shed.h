/* The order in which events go when there is no room for all. */
#ifndef STEPSCOPE_SHED_H
#define STEPSCOPE_SHED_H
#include "core.h"

#define SHED_CATEGORIES 16
#define SHED_PREFIXES 16
#define SHED_WHOLE 65536 /* in which shares are told */

/* Levels from the lowest, which goes first: two for each category, its small events and its large ones; then all that
 * is to be kept; then step marks. Each level may fill its share of what there is, and no more. */
typedef struct {
    uint8_t rank[FIRST_NAME]; /* by category; 0: kept */
    uint32_t share[2 * SHED_CATEGORIES + 2];
    uint32_t kept;            /* the level of what is to be kept; that of step marks is one more */
    int64_t small_ns;
    uint32_t prefixes;        /* of names that are kept whatever their category */
    uint8_t prefix_len[SHED_PREFIXES];
    char prefix[SHED_PREFIXES][40];
} Shedding;

extern Shedding g_shedding; /* of the rings */
uint32_t shed_level(const Shedding *order, const Event *event);
static inline uint64_t shed_share(const Shedding *order, uint32_t level, uint64_t whole) {
    return (whole * order->share[level]) / SHED_WHOLE;
}
PyObject *shed_py_set(PyObject *self, PyObject *args);
PyObject *shed_py_levels(PyObject *self, PyObject *args);

#endif
