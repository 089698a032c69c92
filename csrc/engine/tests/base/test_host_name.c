/* Names of hosts that are not text. */
#include <errno.h>
#include <stddef.h>

#include "base/host_name.h"
#include "tests/check.h"

static const char *name; /* NULL: the system does not tell it */

int gethostname(char *out, size_t size) {
    if (name == NULL) {
        errno = EPERM;
        return -1;
    }
    return snprintf(out, size, "%s", name) >= 0 ? 0 : -1;
}

static void check(const char *given, size_t size, const char *want) {
    char found[256];
    memset(found, '?', sizeof(found));
    name = given;
    mu_host_name(found, size);
    CHECK_STR(found, want);
}

int main(void) {
    check("node-17", 256, "node-17");
    check("knöten", 256, "knöten");
    check("n\xff\xfe.x", 256, "n\\xff\\xfe.x");
    check("", 256, "");
    check(NULL, 256, "");
    check("node-17", 5, "node");
    check("knöten", 4, "kn");
    check("knöten", 1, "");
    return check_report();
}
