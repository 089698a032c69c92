#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int mu_error_set(struct mu_error *err, int code, const char *format, ...) {
    if (err == NULL) {
        return code;
    }
    err->code = code;
    err->sys_errno = 0;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof(err->message), format, args);
    va_end(args);
    return code;
}

int mu_error_sys(struct mu_error *err, const char *action, const char *object) {
    int saved = errno;
    int code = saved == ENOMEM ? MU_ERR_NO_MEMORY : MU_ERR_IO;
    char buffer[128];
    const char *reason = strerror_r(saved, buffer, sizeof(buffer)); /* the GNU one */
    if (object == NULL) {
        mu_error_set(err, code, "%s: %s", action, reason);
    } else {
        mu_error_set(err, code, "%s %s: %s", action, object, reason);
    }
    if (err != NULL) {
        err->sys_errno = saved;
    }
    errno = saved;
    return code;
}
