/* Few names, found by comparing them all; mostly it is the one that was asked for last. */
#include "csv/name_list.h"

#include <stdlib.h>
#include <string.h>

void mu_name_list_init(struct mu_name_list *list) {
    *list = (struct mu_name_list){.count = 1};
}

void mu_name_list_reset(struct mu_name_list *list) {
    for (uint32_t i = 1; i < list->count; i++) {
        free((char *)list->names[i].text);
    }
    mu_name_list_init(list);
}

static size_t length_of(struct mu_span head, struct mu_span tail) {
    return head.length + (tail.length == 0 ? 0 : tail.length + 1);
}

static int is_name(struct mu_span name, struct mu_span head, struct mu_span tail) {
    if (name.length != length_of(head, tail) || name.length == 0 ||
        memcmp(name.text, head.text, head.length) != 0) {
        return 0;
    }
    return tail.length == 0 || (name.text[head.length] == '.' &&
                                memcmp(name.text + head.length + 1, tail.text, tail.length) == 0);
}

MU_MUST_CHECK static int add_name(struct mu_name_list *list, struct mu_span head,
                                  struct mu_span tail, struct mu_error *err) {
    char *text = malloc(length_of(head, tail) + 1);
    if (text == NULL) {
        return mu_error_no_memory(err, "names in a profile");
    }
    memcpy(text, head.text, head.length);
    if (tail.length > 0) {
        text[head.length] = '.';
        memcpy(text + head.length + 1, tail.text, tail.length);
    }
    list->names[list->count++] = (struct mu_span){text, length_of(head, tail)};
    return MU_OK;
}

int mu_name_list_find(struct mu_name_list *list, struct mu_span head, struct mu_span tail,
                      uint32_t *number, struct mu_error *err) {
    *number = 0;
    if (head.length == 0) {
        return MU_OK;
    }
    if (list->last != 0 && is_name(list->names[list->last], head, tail)) {
        *number = list->last;
        return MU_OK;
    }
    uint32_t at = 1;
    while (at < list->count && !is_name(list->names[at], head, tail)) {
        at++;
    }
    if (at == MU_NAMES_MAX) {
        return MU_OK;
    }
    if (at == list->count && add_name(list, head, tail, err) != MU_OK) {
        return err->code;
    }
    *number = list->last = at;
    return MU_OK;
}
