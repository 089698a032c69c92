#include "csv/csv_scan.h"

#include <string.h>

#include "base/cpu.h"

static void add_field(struct mu_csv_cut *cut, const char *end) {
    if (cut->count < MU_CSV_COLUMNS_MAX) {
        cut->end[cut->count++] = end;
    }
}

enum mu_csv_scan_result mu_csv_scan_portable(const char *row, const char *limit,
                                             struct mu_csv_cut *cut) {
    int inside = 0;
    cut->count = cut->line_end_in_quotes = cut->adjacent_quotes = 0;
    for (const char *at = row; at < limit; at++) {
        if (*at == '"') {
            inside = !inside;
            cut->adjacent_quotes |= at > row && at[-1] == '"';
        } else if (inside) {
            cut->line_end_in_quotes |= *at == '\n';
        } else if (*at == ',') {
            add_field(cut, at);
        } else if (*at == '\n') {
            add_field(cut, at);
            cut->row_end = at;
            return MU_CSV_SCAN_ROW;
        }
    }
    return MU_CSV_SCAN_MORE;
}

static int ends_field(const char *at, const char *limit) {
    return *at == ',' || *at == '\n' || (*at == '\r' && at + 1 < limit && at[1] == '\n');
}

/* One past the closing quote, NULL when there is none. `open` is one past the opening one. */
static const char *skip_quoted(const char *open, const char *limit) {
    const char *quote = open;
    while ((quote = memchr(quote, '"', (size_t)(limit - quote))) != NULL) {
        if (quote + 1 >= limit || quote[1] != '"') {
            return quote + 1;
        }
        quote += 2;
    }
    return NULL;
}

enum mu_csv_scan_result mu_csv_scan_strict(const char *row, const char *limit,
                                           struct mu_csv_cut *cut) {
    cut->count = cut->line_end_in_quotes = 0;
    cut->adjacent_quotes = 1;
    for (const char *at = row; at < limit; at++) {
        if (*at == '"') {
            const char *close = skip_quoted(at + 1, limit);
            if (close == NULL || close >= limit) {
                return MU_CSV_SCAN_MORE;
            }
            if (!ends_field(close, limit)) {
                return MU_CSV_SCAN_MALFORMED;
            }
            cut->line_end_in_quotes |= memchr(at, '\n', (size_t)(close - at)) != NULL;
            at = close;
        }
        while (at < limit && *at != ',' && *at != '\n') {
            at++;
        }
        if (at == limit) {
            break;
        }
        add_field(cut, at);
        if (*at == '\n') {
            cut->row_end = at;
            return MU_CSV_SCAN_ROW;
        }
    }
    return MU_CSV_SCAN_MORE;
}

mu_csv_scan mu_csv_scan_best(void) {
#ifdef __x86_64__
    if (mu_cpu_has(MU_CPU_AVX2)) {
        return mu_csv_scan_avx2;
    }
#elif defined(__aarch64__)
    if (mu_cpu_has(MU_CPU_NEON)) {
        return mu_csv_scan_neon;
    }
#endif
    return mu_csv_scan_portable;
}
