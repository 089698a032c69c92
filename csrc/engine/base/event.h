/* The kinds of rows that a profile CSV holds. The CSV holds the names and the journal holds the
 * numbers, so neither ever changes. */
#ifndef MU_EVENT_H
#define MU_EVENT_H

#include <stddef.h>

enum mu_event_type {
    MU_EVENT_START = 1,
    MU_EVENT_END = 2,
    MU_EVENT_INSTANT = 3,
    MU_EVENT_COUNTER = 4,
    MU_EVENT_ASYNC_START = 5,
    MU_EVENT_ASYNC_END = 6,
    MU_EVENT_FLOW_START = 7,
    MU_EVENT_FLOW_END = 8,
};

/* Above this bit the node id of a stage has how many attempts were before that of its process.
 * Below it ids count from 1, also those of stages that began before their process had files. */
enum { MU_NODE_SHIFT = 40 };

/* With these bytes begins the metadata of a START row that only opens the row after it, which is of
 * the type that follows. */
#define MU_CSV_OPENS "opens="

/* NULL for a number that names no type. */
const char *mu_event_name(int type);

/* 0 when the bytes name no type. */
int mu_event_from_name(const char *name, size_t length);

#endif
