#include "base/event.h"

#include <string.h>

static const char *const event_names[] = {
    [MU_EVENT_START] = "START",
    [MU_EVENT_END] = "END",
    [MU_EVENT_INSTANT] = "INSTANT",
    [MU_EVENT_COUNTER] = "COUNTER",
    [MU_EVENT_ASYNC_START] = "ASYNC_START",
    [MU_EVENT_ASYNC_END] = "ASYNC_END",
    [MU_EVENT_FLOW_START] = "FLOW_START",
    [MU_EVENT_FLOW_END] = "FLOW_END",
};

enum { EVENT_TYPE_COUNT = sizeof(event_names) / sizeof(event_names[0]) };

const char *mu_event_name(int type) {
    return type > 0 && type < EVENT_TYPE_COUNT ? event_names[type] : NULL;
}

int mu_event_from_name(const char *name, size_t length) {
    for (int type = MU_EVENT_START; type < EVENT_TYPE_COUNT; type++) {
        if (strlen(event_names[type]) == length && memcmp(event_names[type], name, length) == 0) {
            return type;
        }
    }
    return 0;
}
