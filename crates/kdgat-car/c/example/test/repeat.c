/* Prints a log of `candump -L` again and again, as one drive: repeat LOG FRAMES. The times advance; each repetition begins a millisecond
 * after the last frame of the one before it. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_FRAMES 2000000u
#define TAIL_BYTES 96

typedef struct line {
    double time;
    char tail[TAIL_BYTES]; /* what follows the time, with its newline */
} line;

static line log_lines[MOST_FRAMES];
static char buffer[1 << 20];

int main(int count, char **arguments)
{
    char text[256];
    size_t frames = 0, at = 0;
    uint64_t printed, wanted;
    double offset = 0.0, length;
    FILE *file;

    if (count != 3 || (file = fopen(arguments[1], "r")) == NULL) {
        fprintf(stderr, "usage: repeat LOG FRAMES\n");
        return 2;
    }
    while (frames < MOST_FRAMES && fgets(text, sizeof text, file) != NULL) {
        const char *const end = strchr(text, ')');
        if (text[0] == '(' && end != NULL && strlen(end) < TAIL_BYTES) {
            log_lines[frames].time = strtod(text + 1, NULL);
            memcpy(log_lines[frames].tail, end, strlen(end) + 1u);
            frames++;
        }
    }
    (void)fclose(file);
    if (frames == 0) {
        fprintf(stderr, "%s: no frames\n", arguments[1]);
        return 2;
    }
    length = log_lines[frames - 1u].time - log_lines[0].time + 0.001;
    wanted = strtoull(arguments[2], NULL, 10);
    (void)setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    for (printed = 0; printed < wanted; printed++) {
        const uint64_t micros = (uint64_t)((log_lines[at].time + offset) * 1e6 + 0.5);
        printf("(%" PRIu64 ".%06" PRIu64, micros / 1000000u, micros % 1000000u);
        fputs(log_lines[at].tail, stdout);
        if (++at == frames) {
            at = 0;
            offset += length;
        }
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
