#include "options.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kdgat_car.h"

#define LONGEST_SECONDS 86400.0
#define LEAST_CALIBRATION_SECONDS 10.0
#define DEV_LOG "/dev/log"

static const char help[] =
    "Detects attacks in the traffic of a CAN bus. Prints a JSON line for each window of frames, or with --alarms for each event.\n"
    "\n"
    "Usage: kdgat-car [OPTIONS] FILE\n"
    "       kdgat-car [OPTIONS] --interface NAME\n"
    "       kdgat-car --calibrate DURATION --save FILE [--interface NAME | FILE...]\n"
    "\n"
    "  FILE                     a log of candump -L, a named pipe, or - for standard input\n"
    "  --interface NAME         a CAN interface, such as can0\n"
    "  --threshold SCORE        score above which a window is an attack (default: the calibration's, else the model's)\n"
    "  --load FILE              use this calibration\n"
    "  --calibrate DURATION     make a calibration from this much attack-free traffic of this car, at least 10s, and end; less\n"
    "                           traffic is refused. Several logs are read one after the other, and no window spans two. With\n"
    "                           all, from all traffic until the logs end\n"
    "  --save FILE              write the calibration to this file\n"
    "  --replace                overwrite that file\n"
    "  --max-reject-share SHARE refuse a log with a larger share of lines that are not frames, in its last 1000 lines or in\n"
    "                           all; on a live stream, report it and go on (default 0.1)\n"
    "  --help, --version\n"
    "\n"
    "Alarms:\n"
    "  --alarms                 print alarms instead of windows; the exit code is 3 if a log had alarms\n"
    "  --alarm-after K/N        raise an alarm at K attack windows among the last N (default 1/1, N at most 64)\n"
    "  --alarm-clear WINDOWS    windows without an attack in a row that end an alarm (default 20)\n"
    "  --cooldown DURATION      time after the end of an alarm in which no other is raised (default 0s)\n"
    "  --silence DURATION       report a bus without frames for this long, such as 500ms\n"
    "  --heartbeat DURATION     print a heartbeat this often, such as 60s\n"
    "  --exec COMMAND           run this command with sh at each event but heartbeats, with the event as JSON on its standard\n"
    "                           input and in KDGAT_EVENT, KDGAT_TIME, KDGAT_ALARM, KDGAT_SCORE, KDGAT_SEVERITY, KDGAT_IDS\n"
    "  --syslog[=SOCKET]        send the events to the system's log, too (default socket /dev/log)\n"
    "\n"
    "Exit codes: 0 success, or a stream ended by a signal; 2 wrong usage or input; 3 a log with alarms; 1 anything else.\n";

int options_duration(const char *text, double *seconds)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"s", 1.0}, {"min", 60.0}, {"h", 3600.0}};
    char number[32];
    const char *unit = text + strspn(text, "0123456789.");
    const size_t digits = (size_t)(unit - text);
    size_t at;
    char *end;

    if (digits == 0 || digits >= sizeof number) {
        return 0;
    }
    memcpy(number, text, digits);
    number[digits] = '\0';
    for (at = 0; at < sizeof units / sizeof units[0]; at++) {
        if (strcmp(unit, units[at].name) == 0) {
            *seconds = strtod(number, &end) * units[at].seconds;
            return end == number + digits && *seconds <= LONGEST_SECONDS;
        }
    }
    return 0;
}

/* A whole number from 1 to most; 0 if the text is none. Sets *end. */
static unsigned long whole(const char *text, char **end, unsigned long most)
{
    unsigned long number;
    if (!isdigit((unsigned char)*text)) {
        *end = NULL;
        return 0;
    }
    number = strtoul(text, end, 10);
    return number <= most ? number : 0;
}

/* Readers of values: NULL, or what was expected. */
typedef const char *read_value(options *read, const char *text);

static const char *read_interface(options *read, const char *text)
{
    read->interface = text;
    return *text != '\0' ? NULL : "expected the name of a CAN interface, such as can0";
}

static const char *read_threshold(options *read, const char *text)
{
    char *end;
    read->threshold = strtod(text, &end);
    read->has_threshold = 1;
    if (end == text || *end != '\0' || !isfinite(read->threshold)) {
        return "expected a finite number; a rule such as fpr:0.001 is chosen by kdgat export --threshold";
    }
    return NULL;
}

static const char *read_load(options *read, const char *text)
{
    read->load = text;
    return NULL;
}

static const char *read_save(options *read, const char *text)
{
    read->save = text;
    return NULL;
}

static const char *read_calibrate(options *read, const char *text)
{
    if (strcmp(text, "all") == 0) {
        read->calibrate_seconds = (double)INFINITY;
        return NULL;
    }
    if (!options_duration(text, &read->calibrate_seconds) || read->calibrate_seconds < LEAST_CALIBRATION_SECONDS) {
        return "expected a duration from 10s to 24h, such as 60s, or all: a calibration needs at least 10 s of traffic";
    }
    return NULL;
}

static const char *read_replace(options *read, const char *text)
{
    (void)text;
    read->replaces = 1;
    return NULL;
}

static const char *read_max_reject_share(options *read, const char *text)
{
    char *end;
    read->max_reject_share = strtod(text, &end);
    return end != text && *end == '\0' && read->max_reject_share >= 0.0 && read->max_reject_share <= 1.0
               ? NULL
               : "expected a share from 0 to 1, such as 0.1";
}

static const char *read_alarms(options *read, const char *text)
{
    (void)text;
    read->alarms = 1;
    return NULL;
}

static const char *read_after(options *read, const char *text)
{
    char *end;
    read->rule.needed = (uint32_t)whole(text, &end, ALARM_MOST_AMONG);
    if (end != NULL && *end == '/') {
        read->rule.among = (uint32_t)whole(end + 1, &end, ALARM_MOST_AMONG);
        if (end != NULL && *end == '\0' && read->rule.needed >= 1u && read->rule.needed <= read->rule.among) {
            return NULL;
        }
    }
    return "expected K/N with whole numbers, 1 <= K <= N <= 64, such as 3/5";
}

static const char *read_clear(options *read, const char *text)
{
    char *end;
    read->rule.clear = whole(text, &end, 0xfffffffful);
    return end != NULL && *end == '\0' && read->rule.clear >= 1u ? NULL : "expected a whole number of windows, at least 1";
}

static const char *read_cooldown(options *read, const char *text)
{
    return options_duration(text, &read->rule.cooldown_seconds)
               ? NULL
               : "expected a duration up to 24h with its unit (ms, s, min or h), such as 500ms, 10s or 5min";
}

static const char *positive(const char *text, double *seconds)
{
    if (!options_duration(text, seconds)) {
        return "expected a duration up to 24h with its unit (ms, s, min or h), such as 500ms, 10s or 5min";
    }
    return *seconds > 0.0 ? NULL : "expected a duration above 0, such as 500ms";
}

static const char *read_silence(options *read, const char *text)
{
    return positive(text, &read->silence_seconds);
}

static const char *read_heartbeat(options *read, const char *text)
{
    return positive(text, &read->heartbeat_seconds);
}

static const char *read_exec(options *read, const char *text)
{
    read->exec = text;
    return NULL;
}

static const char *read_syslog(options *read, const char *text)
{
    read->syslog = text != NULL ? text : DEV_LOG;
    return NULL;
}

typedef enum value_kind { VALUE_NONE, VALUE_NEEDED, VALUE_AFTER_EQUALS } value_kind;

static const struct option {
    const char *name;
    value_kind value;
    int needs_alarms;
    read_value *read;
} known[] = {
    {"--interface", VALUE_NEEDED, 0, read_interface},
    {"--threshold", VALUE_NEEDED, 0, read_threshold},
    {"--load", VALUE_NEEDED, 0, read_load},
    {"--save", VALUE_NEEDED, 0, read_save},
    {"--calibrate", VALUE_NEEDED, 0, read_calibrate},
    {"--replace", VALUE_NONE, 0, read_replace},
    {"--max-reject-share", VALUE_NEEDED, 0, read_max_reject_share},
    {"--alarms", VALUE_NONE, 0, read_alarms},
    {"--alarm-after", VALUE_NEEDED, 1, read_after},
    {"--alarm-clear", VALUE_NEEDED, 1, read_clear},
    {"--cooldown", VALUE_NEEDED, 1, read_cooldown},
    {"--silence", VALUE_NEEDED, 1, read_silence},
    {"--heartbeat", VALUE_NEEDED, 1, read_heartbeat},
    {"--exec", VALUE_NEEDED, 1, read_exec},
    {"--syslog", VALUE_AFTER_EQUALS, 1, read_syslog},
};

/* The known option of this name; NULL if there is none. */
static const struct option *find(const char *name, size_t length)
{
    size_t at;
    for (at = 0; at < sizeof known / sizeof known[0]; at++) {
        if (strlen(known[at].name) == length && memcmp(known[at].name, name, length) == 0) {
            return &known[at];
        }
    }
    return NULL;
}

static options_result wrong(const char *what, const char *why)
{
    fprintf(stderr, "error: %s: %s\n", what, why);
    return OPTIONS_WRONG;
}

/* Refuses options that would be ignored. */
static options_result check(const options *read, const char *needs_alarms)
{
    if (needs_alarms != NULL && !read->alarms) {
        return wrong(needs_alarms, "this option needs --alarms");
    }
    if (read->file == NULL && read->interface == NULL) {
        return wrong("no input", "name a log, - for standard input, or --interface; see kdgat-car --help");
    }
    if (read->num_files > 1 && read->save == NULL) {
        return wrong(read->files[1], "only one input is read at a time, but for --calibrate");
    }
    if (read->file != NULL && read->interface != NULL) {
        return wrong(read->file, "a file and --interface exclude each other");
    }
#if KDGAT_PAIR
    if (read->load != NULL || read->calibrate_seconds > 0.0) {
        return wrong(read->load != NULL ? "--load" : "--calibrate", "two models together have no calibration in C; export one of them alone");
    }
#endif
    if ((read->calibrate_seconds > 0.0) != (read->save != NULL)) {
        return wrong(read->save != NULL ? "--save" : "--calibrate", "--calibrate and --save belong together");
    }
    if (read->replaces && read->save == NULL) {
        return wrong("--replace", "this option needs --save");
    }
    if (read->save != NULL && (read->alarms || read->load != NULL || read->has_threshold)) {
        return wrong("--calibrate", "it excludes --alarms, --load and --threshold; detect afterwards with --load");
    }
    return OPTIONS_RUN;
}

options_result options_read(options *read, int count, char **arguments)
{
    const char *needs_alarms = NULL;
    int at, only_files = 0;

    memset(read, 0, sizeof *read);
    read->files = arguments + 1;
    read->rule.needed = 1;
    read->rule.among = 1;
    read->rule.clear = 20;
    read->max_reject_share = 0.1;
    for (at = 1; at < count; at++) {
        const char *const argument = arguments[at], *const equals = strchr(argument, '=');
        const size_t length = equals != NULL ? (size_t)(equals - argument) : strlen(argument);
        const char *value = equals != NULL ? equals + 1 : NULL, *expected;
        const struct option *option;

        if (only_files || argument[0] != '-' || argument[1] == '\0') {
            /* The places of arguments that were read are free. */
            arguments[1 + read->num_files++] = arguments[at];
            read->file = arguments[1];
            continue;
        }
        if (strcmp(argument, "--") == 0) {
            only_files = 1;
            continue;
        }
        if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            fputs(help, stdout);
            return OPTIONS_PRINTED;
        }
        if (strcmp(argument, "--version") == 0) {
            printf("kdgat-car, windows of %u frames, weights %016llx\n", (unsigned)KDGAT_WINDOW, (unsigned long long)KDGAT_MODEL_DIGEST);
            return OPTIONS_PRINTED;
        }
        option = find(argument, length);
        if (option == NULL) {
            return wrong(argument, "unknown option; see kdgat-car --help");
        }
        if (option->value == VALUE_NONE && value != NULL) {
            return wrong(option->name, "this option takes no value");
        }
        if (option->value == VALUE_NEEDED && value == NULL) {
            if (at + 1 >= count) {
                return wrong(option->name, "this option needs a value");
            }
            value = arguments[++at];
        }
        expected = option->read(read, value);
        if (expected != NULL) {
            fprintf(stderr, "error: %s %s: %s\n", option->name, value != NULL ? value : "", expected);
            return OPTIONS_WRONG;
        }
        if (option->needs_alarms && needs_alarms == NULL) {
            needs_alarms = option->name;
        }
    }
    return check(read, needs_alarms);
}
