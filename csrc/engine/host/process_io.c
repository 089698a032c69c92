#include "host/process_io.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 512 };

bool mu_process_io_read_bytes(const struct mu_proc_file *file, uint64_t *out) {
    static const char key[] = "\nread_bytes: ";
    char text[TEXT_BYTES];
    const char *found = mu_proc_text(file, text, sizeof(text)) ? strstr(text, key) : NULL;
    if (found == NULL) {
        return false;
    }
    *out = strtoull(found + strlen(key), NULL, 10);
    return true;
}
