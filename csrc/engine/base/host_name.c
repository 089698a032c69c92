#include "base/host_name.h"

#include <string.h>
#include <unistd.h>

#include "base/utf8.h"

enum { NAME_BYTES = 256 }; /* Linux allows 64 */

void mu_host_name(char *out, size_t size) {
    char name[NAME_BYTES] = "", clean[NAME_BYTES * MU_UTF8_CLEAN_FACTOR];
    size_t bad = 0;
    if (gethostname(name, sizeof(name) - 1) != 0) {
        name[0] = '\0';
    }
    size_t length = mu_utf8_clean(clean, name, strlen(name), &bad);
    length = mu_utf8_cut(clean, length, size - 1);
    memcpy(out, clean, length);
    out[length] = '\0';
}
