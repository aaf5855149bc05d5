/* Text in a buffer of fixed size, with the numbers of JSON. */
#ifndef KDGAT_TEXT_H
#define KDGAT_TEXT_H

#include <stddef.h>
#include <stdint.h>

typedef struct text {
    char *bytes; /* ends with a zero byte */
    size_t capacity;
    size_t length; /* without the zero byte */
} text;

/* An empty text in `capacity` bytes, at least 1. */
text text_in(char *bytes, size_t capacity);

/* Append; what does not fit is cut off. */
void text_add(text *to, const char *string);
void text_count(text *to, uint64_t number);
/* Three hexadecimal digits or more. */
void text_id(text *to, uint32_t id);
/* The shortest decimal number that is read as the same double; `null` if it is not finite. */
void text_double(text *to, double number);
/* Likewise for a float. */
void text_float(text *to, float number);

#endif
