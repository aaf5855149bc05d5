/* Parser of `candump -L`, written for speed: no copy of the line, no conversion by the C library but for unusual times. */
#include "candump.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_FLAG 0x20000000u
#define MOST_ID 0x1FFFFFFFu
#define CLASSIC_BYTES 8u
#define FD_BYTES 64u

/* A stretch of the line. */
typedef struct span {
    const char *text;
    size_t length;
} span;

/* Powers of ten that a double holds exactly. */
static const double powers_of_ten[20] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,
                                         1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19};

/* Value of a hexadecimal digit; 16 for another byte. */
static unsigned nibble(char byte)
{
    if (byte >= '0' && byte <= '9') {
        return (unsigned)(byte - '0');
    }
    if (byte >= 'a' && byte <= 'f') {
        return (unsigned)(byte - 'a') + 10u;
    }
    if (byte >= 'A' && byte <= 'F') {
        return (unsigned)(byte - 'A') + 10u;
    }
    return 16u;
}

static int is_blank(char byte)
{
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\f' || byte == '\n';
}

/* Takes the next word of the line; its length is 0 at the end. */
static span next_word(span *line)
{
    span word;
    while (line->length > 0 && is_blank(*line->text)) {
        line->text++;
        line->length--;
    }
    word.text = line->text;
    while (line->length > 0 && !is_blank(*line->text)) {
        line->text++;
        line->length--;
    }
    word.length = (size_t)(line->text - word.text);
    return word;
}

/* A time in any other notation of a number: with an exponent, a sign, or many digits. */
static int slow_time(span word, double *time)
{
    char copy[64];
    char *end;
    size_t position;
    if (word.length == 0 || word.length >= sizeof copy) {
        return 0;
    }
    for (position = 0; position < word.length; position++) {
        /* strtod also reads hexadecimal numbers and names; these are no times. */
        if (strchr("0123456789.+-eE", word.text[position]) == NULL || word.text[position] == '\0') {
            return 0;
        }
    }
    memcpy(copy, word.text, word.length);
    copy[word.length] = '\0';
    *time = strtod(copy, &end);
    return *end == '\0' && isfinite(*time);
}

/* Parses a plain decimal number. A mantissa of at most 2^53 divided by an exact power of ten is rounded once, so the result is the
 * nearest double, as from strtod. */
static int parse_time(span word, double *time)
{
    uint64_t mantissa = 0;
    size_t position = 0, digits = 0, whole, fraction = 0;
    while (position < word.length && word.text[position] >= '0' && word.text[position] <= '9' && digits < 20) {
        mantissa = mantissa * 10u + (uint64_t)(word.text[position] - '0');
        position++;
        digits++;
    }
    whole = digits;
    if (position < word.length && word.text[position] == '.') {
        position++;
        while (position < word.length && word.text[position] >= '0' && word.text[position] <= '9' && digits < 20) {
            mantissa = mantissa * 10u + (uint64_t)(word.text[position] - '0');
            position++;
            digits++;
        }
        fraction = digits - whole;
    }
    if (position != word.length || whole == 0 || digits > 19 || mantissa > (UINT64_C(1) << 53)) {
        return slow_time(word, time);
    }
    *time = (double)mantissa / powers_of_ten[fraction];
    return 1;
}

/* Two digits a byte, without separators. */
static int packed_payload(span digits, size_t most_bytes, candump_frame *frame)
{
    size_t position, bytes = digits.length / 2u;
    if (digits.length % 2u != 0 || bytes > most_bytes) {
        return 0;
    }
    for (position = 0; position < bytes; position++) {
        unsigned high = nibble(digits.text[2u * position]), low = nibble(digits.text[2u * position + 1u]);
        if ((high | low) >= 16u) {
            return 0;
        }
        if (position < sizeof frame->data) {
            frame->data[position] = (uint8_t)(high << 4 | low);
        }
    }
    frame->length = (uint8_t)bytes;
    return 1;
}

/* One or two digits a byte, with dots between bytes. */
static int dotted_payload(span text, size_t most_bytes, candump_frame *frame)
{
    size_t position = 0, bytes = 0;
    for (;;) {
        unsigned value = 0;
        size_t digits = 0;
        while (position < text.length && text.text[position] != '.') {
            unsigned digit = nibble(text.text[position]);
            if (digit >= 16u || digits == 2u) {
                return 0;
            }
            value = value << 4 | digit;
            digits++;
            position++;
        }
        if (digits == 0 || bytes >= most_bytes) {
            return 0;
        }
        if (bytes < sizeof frame->data) {
            frame->data[bytes] = (uint8_t)value;
        }
        bytes++;
        if (position == text.length) {
            frame->length = (uint8_t)bytes;
            return 1;
        }
        position++;
    }
}

static int parse_payload(span text, size_t most_bytes, candump_frame *frame)
{
    /* A data length code above 8 may follow. */
    if (text.length >= 2u && text.text[text.length - 2u] == '_' && nibble(text.text[text.length - 1u]) < 16u) {
        text.length -= 2u;
    }
    if (text.length > 0 && memchr(text.text, '.', text.length) != NULL) {
        return dotted_payload(text, most_bytes, frame);
    }
    return packed_payload(text, most_bytes, frame);
}

/* Up to three decimal digits: the length of a remote frame. */
static int is_small_number(span text)
{
    size_t position;
    for (position = 0; position < text.length; position++) {
        if (text.text[position] < '0' || text.text[position] > '9') {
            return 0;
        }
    }
    return text.length <= 3u;
}

static candump_row parse_frame(span word, candump_frame *frame)
{
    uint32_t id = 0;
    size_t digits = 0;
    span data;
    while (digits < word.length && nibble(word.text[digits]) < 16u) {
        if (digits == 8u) {
            return CANDUMP_REJECTED;
        }
        id = id << 4 | nibble(word.text[digits]);
        digits++;
    }
    if (digits == 0 || digits == word.length || word.text[digits] != '#') {
        return CANDUMP_REJECTED;
    }
    if ((id & ERROR_FLAG) != 0) {
        return CANDUMP_ERROR;
    }
    if (id > MOST_ID) {
        return CANDUMP_REJECTED;
    }
    frame->id = id;
    data.text = word.text + digits + 1u;
    data.length = word.length - digits - 1u;
    if (data.length > 0 && data.text[0] == '#') {
        if (data.length < 2u || nibble(data.text[1]) >= 16u) {
            return CANDUMP_REJECTED;
        }
        data.text += 2;
        data.length -= 2u;
        return parse_payload(data, FD_BYTES, frame) ? CANDUMP_FRAME : CANDUMP_REJECTED;
    }
    if (data.length > 0 && data.text[0] == 'R') {
        data.text++;
        data.length--;
        return is_small_number(data) ? CANDUMP_FRAME : CANDUMP_REJECTED;
    }
    return parse_payload(data, CLASSIC_BYTES, frame) ? CANDUMP_FRAME : CANDUMP_REJECTED;
}

candump_row candump_parse(const char *line, size_t length, candump_frame *frame)
{
    candump_frame found;
    candump_row row;
    span rest, stamp, interface, word, direction;
    if (length > CANDUMP_MOST_BYTES) {
        return CANDUMP_REJECTED;
    }
    memset(&found, 0, sizeof found);
    rest.text = line;
    rest.length = length;
    stamp = next_word(&rest);
    if (stamp.length == 0) {
        return CANDUMP_EMPTY;
    }
    interface = next_word(&rest);
    word = next_word(&rest);
    direction = next_word(&rest);
    if (interface.length == 0 || word.length == 0 || next_word(&rest).length != 0) {
        return CANDUMP_REJECTED;
    }
    if (direction.length != 0 && !(direction.length == 1u && (*direction.text == 'R' || *direction.text == 'T'))) {
        return CANDUMP_REJECTED;
    }
    if (stamp.length < 2u || stamp.text[0] != '(' || stamp.text[stamp.length - 1u] != ')') {
        return CANDUMP_REJECTED;
    }
    stamp.text++;
    stamp.length -= 2u;
    if (!parse_time(stamp, &found.time)) {
        return CANDUMP_REJECTED;
    }
    row = parse_frame(word, &found);
    if (row == CANDUMP_FRAME) {
        *frame = found;
    }
    return row;
}
