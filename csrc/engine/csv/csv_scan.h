/* Finds where the fields of one CSV row end (RFC 4180 quotes).
 *
 * The fast scanners toggle at every quote, which is right for well-formed rows. They report a row
 * that has a line end inside quotes. Then mu_csv_scan_strict, which opens a quote only at the start
 * of a field, decides whether the row is malformed. Pure functions of the bytes.
 */
#ifndef MU_CSV_SCAN_H
#define MU_CSV_SCAN_H

#include <stddef.h>
#include <stdint.h>

/* Columns beyond this number count as one. */
enum { MU_CSV_COLUMNS_MAX = 64 };

/* The fast scanners may read this many bytes beyond `limit`. */
enum { MU_CSV_SCAN_PADDING = 64 };

enum mu_csv_scan_result {
    MU_CSV_SCAN_ROW,
    MU_CSV_SCAN_MORE,      /* no line end before `limit` */
    MU_CSV_SCAN_MALFORMED, /* from the strict scanner only */
};

struct mu_csv_cut {
    int count;                           /* fields, MU_CSV_COLUMNS_MAX at most */
    int line_end_in_quotes;              /* the row spans several lines, or is malformed */
    int adjacent_quotes;                 /* 0: no field holds a doubled quote */
    const char *end[MU_CSV_COLUMNS_MAX]; /* one past each field: the comma or the line end */
    const char *row_end;                 /* the line end */
};

typedef enum mu_csv_scan_result (*mu_csv_scan)(const char *row, const char *limit,
                                               struct mu_csv_cut *cut);

/* The fastest that this processor runs. */
mu_csv_scan mu_csv_scan_best(void);

enum mu_csv_scan_result mu_csv_scan_portable(const char *row, const char *limit,
                                             struct mu_csv_cut *cut);
enum mu_csv_scan_result mu_csv_scan_avx2(const char *row, const char *limit,
                                         struct mu_csv_cut *cut);
enum mu_csv_scan_result mu_csv_scan_neon(const char *row, const char *limit,
                                         struct mu_csv_cut *cut);
enum mu_csv_scan_result mu_csv_scan_strict(const char *row, const char *limit,
                                           struct mu_csv_cut *cut);

#endif
