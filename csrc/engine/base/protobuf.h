/* The few parts of protobuf's wire format that a trace needs: varints, fixed64, bytes, messages.
 * https://protobuf.dev/programming-guides/encoding/
 *
 * All functions write at `out` and return one past the end; the caller has made room.
 */
#ifndef MU_PROTOBUF_H
#define MU_PROTOBUF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PB_VARINT = 0, PB_FIXED64 = 1, PB_BYTES = 2 };

static inline char *pb_varint(char *out, uint64_t value) {
    while (value >= 0x80) {
        *out++ = (char)(value | 0x80);
        value >>= 7;
    }
    *out++ = (char)value;
    return out;
}

static inline char *pb_tag(char *out, unsigned field, unsigned wire_type) {
    return pb_varint(out, field << 3 | wire_type);
}

static inline char *pb_uint(char *out, unsigned field, uint64_t value) {
    return pb_varint(pb_tag(out, field, PB_VARINT), value);
}

/* int32 and int64: negative numbers take ten bytes. */
static inline char *pb_int(char *out, unsigned field, int64_t value) {
    return pb_uint(out, field, (uint64_t)value);
}

/* Little-endian on the wire. */
static inline char *pb_fixed64(char *out, unsigned field, uint64_t value) {
    out = pb_tag(out, field, PB_FIXED64);
    for (int shift = 0; shift < 64; shift += 8) {
        *out++ = (char)(value >> shift);
    }
    return out;
}

static inline char *pb_double(char *out, unsigned field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return pb_fixed64(out, field, bits);
}

static inline char *pb_bytes(char *out, unsigned field, const char *text, size_t length) {
    out = pb_varint(pb_tag(out, field, PB_BYTES), length);
    memcpy(out, text, length);
    return out + length;
}

/* Begins a nested message: its content starts at `*body`. One byte is reserved for the length. */
static inline char *pb_open(char *out, unsigned field, char **body) {
    out = pb_tag(out, field, PB_BYTES);
    *body = out + 1;
    return out + 1;
}

/* Ends a nested message: writes its length. A content of 128 bytes or more is moved to make room
 * for it. */
static inline char *pb_close(char *body, char *out) {
    size_t length = (size_t)(out - body);
    if (length < 0x80) {
        body[-1] = (char)length;
        return out;
    }
    char prefix[10];
    size_t size = (size_t)(pb_varint(prefix, length) - prefix);
    memmove(body - 1 + size, body, length);
    memcpy(body - 1, prefix, size);
    return out + size - 1;
}

#endif
