#include "process_stacks/stack_request.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64, REQUEST_BYTES = 4096, NUMBER_DIGITS_MAX = 9 };

/* --- JSON ------------------------------------------------------------------------------------ */

struct json {
    const char *at, *end;
};

static void skip_space(struct json *json) {
    while (json->at < json->end && memchr(" \t\r\n", *json->at, 4) != NULL) {
        json->at++;
    }
}

/* Whether the next character is this one, which is taken then. */
static bool takes(struct json *json, char wanted) {
    skip_space(json);
    bool found = json->at < json->end && *json->at == wanted;
    json->at += found;
    return found;
}

/* A string without its quotes, escapes unchanged. NULL when there is none. */
static const char *take_string(struct json *json, size_t *length) {
    if (!takes(json, '"')) {
        return NULL;
    }
    const char *begin = json->at;
    while (json->at < json->end && *json->at != '"') {
        json->at += *json->at == '\\' && json->at + 1 < json->end ? 2 : 1;
    }
    if (json->at >= json->end) {
        return NULL;
    }
    *length = (size_t)(json->at++ - begin);
    return begin;
}

/* Passes over a value of any kind. False where the text ends, or nests too deep. */
static bool skip_value(struct json *json) {
    int depth = 0;
    size_t length;
    do {
        skip_space(json);
        if (json->at >= json->end) {
            return false;
        }
        char c = *json->at;
        if (c == '"') {
            if (take_string(json, &length) == NULL) {
                return false;
            }
            continue;
        }
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        if (depth < 0 || depth > DEPTH_MAX) {
            return false;
        }
        json->at++;
        bool is_word = isalnum((unsigned char)c) || c == '-';
        while (is_word && json->at < json->end && strchr(",]}", *json->at) == NULL) {
            json->at++;
        }
    } while (depth > 0);
    return true;
}

/* Moves behind `"key":` of the outermost object; false when it has no such key. */
static bool find_key(struct json *json, const char *key) {
    if (!takes(json, '{')) {
        return false;
    }
    do {
        size_t length;
        const char *found = take_string(json, &length);
        if (found == NULL || !takes(json, ':')) {
            return false;
        }
        if (length == strlen(key) && memcmp(found, key, length) == 0) {
            return true;
        }
    } while (skip_value(json) && takes(json, ','));
    return false;
}

/* --- a request ------------------------------------------------------------------------------- */

/* Digits up to `most`; false for anything else. */
static bool take_number(const char **text, uint32_t most, uint32_t *value) {
    size_t digits = strspn(*text, "0123456789");
    if (digits == 0 || digits > NUMBER_DIGITS_MAX) {
        return false;
    }
    *value = (uint32_t)strtoul(*text, NULL, 10);
    *text += digits;
    return *value <= most;
}

static bool is_id(const char *id) {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                  "._-";
    size_t length = strlen(id);
    return length > 0 && length < MU_STACK_ID_BYTES && strspn(id, letters) == length &&
           isalnum((unsigned char)id[0]);
}

static bool holds_rank(const char *ranks, int rank) {
    while (strcmp(ranks, "*") != 0) {
        uint32_t low, high;
        if (!take_number(&ranks, INT32_MAX, &low)) {
            return false;
        }
        high = low;
        if (*ranks == '-') {
            ranks++;
            if (!take_number(&ranks, INT32_MAX, &high)) {
                return false;
            }
        }
        bool is_held = rank >= 0 && (uint32_t)rank >= low && (uint32_t)rank <= high;
        if (rank == MU_STACK_ANY_RANK || is_held) {
            return true;
        }
        if (*ranks != ',') {
            return false;
        }
        ranks++;
    }
    return true;
}

/* Whether the words are a request for the rank. */
static bool read_request(char *words, int rank, struct mu_stack_request *request) {
    char *rest = NULL;
    const char *id = strtok_r(words, " ", &rest);
    const char *ranks = strtok_r(NULL, " ", &rest);
    const char *milliseconds = strtok_r(NULL, " ", &rest);
    const char *hz = strtok_r(NULL, " ", &rest);
    if (hz == NULL || !is_id(id) || !holds_rank(ranks, rank) ||
        !take_number(&milliseconds, MU_STACK_MILLISECONDS_MAX, &request->milliseconds) ||
        !take_number(&hz, MU_STACK_HZ_MAX, &request->hz) || request->hz == 0) {
        return false;
    }
    memcpy(request->id, id, strlen(id) + 1);
    return true;
}

void mu_stack_requests(const char *text, size_t length, int rank, mu_stack_request_each *each,
                       void *context) {
    struct json json = {text, text + length};
    if (!find_key(&json, "stacks") || !takes(&json, '[')) {
        return;
    }
    do {
        char words[REQUEST_BYTES];
        struct mu_stack_request request;
        size_t bytes;
        const char *found = take_string(&json, &bytes);
        if (found == NULL) {
            return;
        }
        if (bytes < sizeof(words)) {
            memcpy(words, found, bytes);
            words[bytes] = '\0';
            if (read_request(words, rank, &request)) {
                each(context, &request);
            }
        }
    } while (takes(&json, ','));
}

bool mu_stack_requests_alone(const char *text, size_t length) {
    struct json stacks = {text, text + length}, others = stacks;
    return find_key(&stacks, "stacks") && takes(&stacks, '[') && find_key(&others, "requests") &&
           takes(&others, '[') && takes(&others, ']');
}
