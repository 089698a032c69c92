#include "journal/strings.h"

#include <string.h>

const char *mu_strings_get(const struct mu_strings *strings, uint32_t index, size_t *length) {
    uint32_t count = atomic_load_explicit(strings->count, memory_order_acquire);
    if (index == 0 || index >= count || index >= MU_STRINGS_MAX) {
        return NULL;
    }
    const struct mu_string_entry *entry = &strings->entries[index];
    if (entry->length > MU_STRING_BYTES_MAX || entry->offset > strings->blob_bytes ||
        entry->length > strings->blob_bytes - entry->offset) {
        return NULL;
    }
    const char *text = strings->blob + entry->offset;
    if (strings->may_lack_bytes && memchr(text, '\0', entry->length) != NULL) {
        return NULL;
    }
    *length = entry->length;
    return text;
}
