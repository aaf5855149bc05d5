/* kdgat-car: the exported detector as a program. Reads frames, prints the JSON lines of `kdgat detect`.
 *
 *   input --frames--> bus (silence, heartbeat)
 *                 \-> detector --windows--> alarm layer --events--> standard output, --syslog, --exec
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alarm.h"
#include "bus.h"
#include "event.h"
#include "hook.h"
#include "input.h"
#include "notify.h"
#include "options.h"
#include "saved.h"
#include "severity.h"

#define EXIT_MACHINE 1
#define EXIT_INPUT 2
#define EXIT_ALARMS 3
/* Time that commands of --exec get after the end of the stream. */
#define PATIENCE_SECONDS 10.0
/* Most seconds counted between two frames of a calibration: joined logs have gaps of days. */
#define LONGEST_STEP_SECONDS 1.0
#define LEAST_CALIBRATION_SECONDS 10.0
#define OUTPUT_BYTES 65536u

static volatile sig_atomic_t stop_requested;

static void request_stop(int signal_number)
{
    (void)signal_number;
    stop_requested = 1;
}

/* Only interrupts a wait, so that the next call of --exec begins at once. */
static void child_ended(int signal_number)
{
    (void)signal_number;
}

/* The first SIGINT or SIGTERM ends the stream with its summary, a second one the program. */
static void listen_to_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    (void)sigemptyset(&action.sa_mask);
    action.sa_handler = request_stop;
    action.sa_flags = (int)SA_RESETHAND;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    action.sa_handler = SIG_IGN;
    action.sa_flags = 0;
    (void)sigaction(SIGPIPE, &action, NULL);
    action.sa_handler = child_ended;
    (void)sigaction(SIGCHLD, &action, NULL);
}

static double seconds_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Standard output: lines are written together, at the latest when all frames that have come are judged. */
static struct {
    size_t length;
    int problem; /* errno of the first write that failed; nothing is written after it */
    char bytes[OUTPUT_BYTES];
} output;

static void flush_output(void)
{
    size_t written = 0;
    while (written < output.length && output.problem == 0) {
        const ssize_t count = write(STDOUT_FILENO, output.bytes + written, output.length - written);
        if (count >= 0) {
            written += (size_t)count;
        } else if (errno != EINTR) {
            output.problem = errno;
        }
    }
    output.length = 0;
}

static void print_line(const char *line)
{
    const size_t length = strlen(line);
    if (output.length + length + 1u > sizeof output.bytes) {
        flush_output();
    }
    memcpy(output.bytes + output.length, line, length);
    output.bytes[output.length + length] = '\n';
    output.length += length + 1u;
}

/* Everything between the frames and the receivers of lines. */
static struct {
    options asked;
    kdgat_state detector;
    alarm_state alarms;
    bus_state bus;
    hook calls;
    system_log log;
    service manager;
    uint64_t windows;
    uint64_t attacks;
    double start;
} program;

static input frames_in;

static void take_event(const event *about)
{
    system_log_send(&program.log, about);
    if (about->kind != EVENT_HEARTBEAT) {
        hook_call(&program.calls, about);
    }
    print_line(about->json);
}

static void take_bus_events(const bus_events *events)
{
    event made;
    uint32_t at;
    for (at = 0; at < events->count; at++) {
        event_from_bus(&made, &events->event[at]);
        take_event(&made);
    }
}

static void take_alarm_event(const alarm_event *found)
{
    event made;
    if (found->kind != ALARM_NONE) {
        event_from_alarm(&made, found);
        take_event(&made);
    }
}

static bus_counts counts(void)
{
    bus_counts made;
    made.windows = program.windows;
    made.alarms = program.alarms.raised;
    made.suppressed = program.alarms.suppressed;
    return made;
}

/* IDs that are gone since this window. */
static uint8_t num_gone(const kdgat_result *result)
{
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    return result->num_gone;
#else
    (void)result;
    return 0;
#endif
}

static int is_attack(const kdgat_result *result)
{
    if (num_gone(result) > 0u) {
        return 1;
    }
    return program.asked.has_threshold ? result->score > program.asked.threshold : result->attack;
}

static alarm_severity severity_of(const kdgat_result *result)
{
    const double threshold = program.asked.has_threshold ? program.asked.threshold : KDGAT_THRESHOLD;
    if (result->calibrated && !program.asked.has_threshold) {
        return severity_of_deviations(result->deviations, program.detector.calibration.threshold,
                                      KDGAT_MODEL == KDGAT_MODEL_VGAE ? 1.0 : program.detector.calibration.spread);
    }
    if (KDGAT_PAIR) {
        return severity_of_deviations(result->score, threshold, 1.0);
    }
    return KDGAT_MODEL == KDGAT_MODEL_VGAE ? severity_of_difficulty(result->score, threshold)
                                           : severity_of_probability(result->score, threshold);
}

static void take_alarm_verdict(const kdgat_result *result, int attack)
{
    alarm_verdict verdict;
    alarm_event found;

    memset(&verdict, 0, sizeof verdict);
    verdict.window = result->window;
    verdict.time = result->time;
    verdict.score = result->score;
    verdict.deviations = result->calibrated ? result->deviations : NAN;
    verdict.attack = (uint8_t)attack;
    if (attack) {
        verdict.severity = severity_of(result);
        if (num_gone(result) > 0u && verdict.severity < ALARM_MEDIUM) {
            verdict.severity = ALARM_MEDIUM;
        }
        /* As kdgat detect: the IDs that differ most from the profile, or the one that weighs most. */
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
        verdict.num_gone = result->num_gone;
        memcpy(verdict.gone, result->gone, sizeof result->gone);
        verdict.num_ids = result->num_culprits;
        memcpy(verdict.id, result->culprit, sizeof result->culprit);
        if (result->num_culprits == 0u) {
            verdict.num_ids = 1;
            verdict.id[0] = result->id[0];
        }
#else
        verdict.num_ids = 1;
        verdict.id[0] = result->id[0];
#endif
    }
    alarm_push(&program.alarms, &verdict, &found);
    take_alarm_event(&found);
}

static void take_window(const kdgat_result *result)
{
    const int attack = is_attack(result);
    program.windows++;
    program.attacks += attack ? 1u : 0u;
    if (program.asked.alarms) {
        take_alarm_verdict(result, attack);
    } else {
        char bytes[512];
        text line = text_in(bytes, sizeof bytes);
        event_window(&line, result, attack);
        print_line(bytes);
    }
}

static void take_frame(const candump_frame *from, double now)
{
    kdgat_frame frame;
    kdgat_result result;

    if (program.asked.alarms) {
        const bus_counts before = counts();
        bus_events events;
        bus_frame(&program.bus, from->time, now, &before, &events);
        take_bus_events(&events);
    }
    frame.time = from->time;
    frame.id = from->id;
    frame.length = from->length;
    memcpy(frame.data, from->data, sizeof frame.data);
    if (kdgat_push(&program.detector, &frame, &result)) {
        take_window(&result);
    }
}

/* Judges frames until the input ends or a signal arrives. Returns the exit code; *busy is the time without waiting for frames. */
static int detect(double *busy)
{
    candump_frame frame;
    input_result result = INPUT_READ;

    while (result == INPUT_READ && !stop_requested && output.problem == 0 && !frames_in.is_refused) {
        double now;
        result = input_read(&frames_in);
        now = seconds_now();
        while (input_next(&frames_in, &frame)) {
            take_frame(&frame, now - program.start);
        }
        if (program.asked.alarms && frames_in.is_live) {
            const bus_counts so_far = counts();
            bus_events events;
            bus_tick(&program.bus, now - program.start, input_reject_share(&frames_in), &so_far, &events);
            take_bus_events(&events);
        }
        flush_output();
        hook_pump(&program.calls);
        service_alive(&program.manager, now);
        *busy += seconds_now() - now;
    }
    if (result == INPUT_FAILED) {
        return frames_in.is_can ? EXIT_MACHINE : EXIT_INPUT;
    }
    return !stop_requested && input_is_wrong(&frames_in) ? EXIT_INPUT : 0;
}

/* Prints what was found, to standard error. */
static void summarise(double busy)
{
    const double windows = program.windows > 0u ? (double)program.windows : 1.0;
    fprintf(stderr, "%" PRIu64 " windows, %" PRIu64 " of them called attacks, %.3f ms each; %" PRIu64 " frames\n", program.windows,
            program.attacks, 1e3 * busy / windows, frames_in.frames);
    input_notes(&frames_in);
    if (!program.asked.alarms) {
        return;
    }
    fprintf(stderr, "alarms raised: %" PRIu64, program.alarms.raised);
    if (program.alarms.suppressed > 0u) {
        fprintf(stderr, "; suppressed within %g s of the end of another: %" PRIu64, program.asked.rule.cooldown_seconds,
                program.alarms.suppressed);
    }
    if (program.bus.silences > 0u) {
        fprintf(stderr, "; silences of the bus: %" PRIu64 "%s", program.bus.silences, program.bus.silent ? ", the last to the end" : "");
    }
    fputc('\n', stderr);
}

static int run_detection(void)
{
    const options *const asked = &program.asked;
    alarm_event last;
    double busy = 0.0;
    int code;

#if !KDGAT_PAIR
    if (asked->load != NULL && (code = saved_load(&program.detector, asked->load)) != 0) {
        return code;
    }
#endif
    if (asked->has_threshold) {
        fprintf(stderr, "attacks: scores above %g (--threshold)\n", asked->threshold);
    } else if (asked->load != NULL) {
        fprintf(stderr, "attacks: scores above %.2f on this car's scale: usual spreads above its usual score (%s)\n",
                program.detector.calibration.threshold, asked->load);
    } else {
        fprintf(stderr, "attacks: %s above %g (chosen by the export)\n",
                KDGAT_PAIR ? "means of both models' standardised scores" : "scores", KDGAT_THRESHOLD);
    }
    frames_in.goes_on = frames_in.is_live;
    /* A window's line names the ID that weighs most, and the model does not name it for what its own threshold calls normal. */
    kdgat_explain_all(&program.detector, !asked->alarms || asked->has_threshold);
    alarm_init(&program.alarms, &asked->rule);
    bus_init(&program.bus, asked->silence_seconds, asked->heartbeat_seconds, frames_in.is_live);
    if (!system_log_open(&program.log, asked->syslog)) {
        return EXIT_INPUT;
    }
    if (!hook_start(&program.calls, asked->exec)) {
        return EXIT_MACHINE;
    }
    program.start = seconds_now();
    service_ready(&program.manager, program.start);
    code = detect(&busy);
    service_stopping();
    if (asked->alarms) {
        /* Also after an error: an open alarm has an end. */
        alarm_finish(&program.alarms, &last);
        take_alarm_event(&last);
        flush_output();
    }
    summarise(busy);
    hook_finish(&program.calls, PATIENCE_SECONDS);
    if (program.log.lost > 0u) {
        fprintf(stderr, "--syslog: %" PRIu64 " messages lost, because the system's log could not take them\n", program.log.lost);
    }
    if (output.problem != 0 && output.problem != EPIPE) {
        fprintf(stderr, "error: cannot write to standard output: %s\n", strerror(output.problem));
        return EXIT_MACHINE;
    }
    if (code == 0 && asked->alarms && program.alarms.raised > 0u && !stop_requested && output.problem == 0) {
        return EXIT_ALARMS;
    }
    return code;
}

#if !KDGAT_PAIR

static kdgat_calibration work;

/* What a calibration has read. */
typedef struct {
    double seconds;
    kdgat_status status; /* KDGAT_FULL: there was no room for the last frame */
    int logs;
} collected;

/* Adds the frames of the open input until there is enough traffic, no room (KDGAT_FULL), the input ends or a signal arrives; returns the exit
 * code. */
static int collect(collected *so_far)
{
    candump_frame from;
    kdgat_frame frame;
    input_result result = INPUT_READ;
    double last = NAN;

    while (result == INPUT_READ && !stop_requested && so_far->status == KDGAT_OK && so_far->seconds < program.asked.calibrate_seconds &&
           !frames_in.is_refused) {
        result = input_read(&frames_in);
        service_alive(&program.manager, seconds_now());
        while (so_far->status == KDGAT_OK && so_far->seconds < program.asked.calibrate_seconds && input_next(&frames_in, &from)) {
            const double step = from.time - last; /* NaN at the first frame */
            frame.time = from.time;
            frame.id = from.id;
            frame.length = from.length;
            memcpy(frame.data, from.data, sizeof frame.data);
            so_far->status = kdgat_calibrate_push(&program.detector, &work, &frame);
            if (so_far->status == KDGAT_OK) {
                so_far->seconds += step > LONGEST_STEP_SECONDS ? LONGEST_STEP_SECONDS : step > 0.0 ? step : 0.0;
                last = from.time;
            }
        }
    }
    so_far->logs++;
    if (result == INPUT_FAILED) {
        return frames_in.is_can ? EXIT_MACHINE : EXIT_INPUT;
    }
    if (!stop_requested && input_is_wrong(&frames_in)) {
        return EXIT_INPUT;
    }
    input_notes(&frames_in);
    return 0;
}

/* Reads the open input, and then the other logs; returns the exit code. */
static int collect_all(collected *found)
{
    const options *const asked = &program.asked;
    int code = collect(found), number;

    for (number = 1; code == 0 && number < asked->num_files; number++) {
        if (found->status != KDGAT_OK || stop_requested || found->seconds >= asked->calibrate_seconds) {
            fprintf(stderr, "%s: not read; %.1f s of traffic were read before it\n", asked->files[number], found->seconds);
            continue;
        }
        input_close(&frames_in);
        code = input_open(&frames_in, asked->files[number], asked->max_reject_share);
        if (code == 0) {
            kdgat_calibrate_next_log(&program.detector, &work);
            code = collect(found);
        }
    }
    return code;
}

/* Refuses less traffic than a calibration needs, or was asked for; returns the exit code. */
static int expect_enough(const collected *found)
{
    const double seconds = found->seconds, asked = program.asked.calibrate_seconds;
    const char *const first = program.asked.num_files > 0 ? program.asked.files[0] : frames_in.name;
    const char *const has = program.asked.num_files > 1 ? " and the other logs have" : " has";

    if (found->status == KDGAT_FULL) {
        fprintf(stderr,
                "error: a calibration has room for %u windows, which are the first %.1f s of this traffic, less than --calibrate asks for; ask for "
                "less, or build with more room: make -B DEFINES=-DKDGAT_CALIBRATION_WINDOWS=%uu\n",
                (unsigned)KDGAT_CALIBRATION_WINDOWS, seconds, 4u * (unsigned)KDGAT_CALIBRATION_WINDOWS);
        return EXIT_INPUT;
    }
    if (seconds < LEAST_CALIBRATION_SECONDS) {
        fprintf(stderr, "error: %s%s %.1f s of traffic; a calibration needs at least %.0f s\n", first, has, seconds, LEAST_CALIBRATION_SECONDS);
        return EXIT_INPUT;
    }
    if (!stop_requested && seconds < asked && isfinite(asked)) {
        fprintf(stderr, "error: %s%s %.1f s of traffic, less than --calibrate %g s; give longer logs or more of them, or a shorter "
                        "duration\n",
                first, has, seconds, asked);
        return EXIT_INPUT;
    }
    return 0;
}

/* Refuses a log that is given twice: its windows would be judged by themselves. */
static int expect_once(void)
{
    const options *const asked = &program.asked;
    int one, other;
    for (one = 1; one < asked->num_files; one++) {
        for (other = 0; other < one; other++) {
            if (input_is_same(asked->files[one], asked->files[other])) {
                fprintf(stderr, "error: %s is given twice\n", asked->files[one]);
                return EXIT_INPUT;
            }
        }
    }
    return 0;
}

static int run_calibration(void)
{
    const options *const asked = &program.asked;
    const double enough = 1.0 / KDGAT_CALIBRATION_RATE;
    collected found = {0.0, KDGAT_OK, 0};
    kdgat_status status;
    int code = saved_expect_free(asked->save, asked->replaces);

    if (code == 0) {
        code = expect_once();
    }
    if (code != 0) {
        return code;
    }
    service_ready(&program.manager, seconds_now());
    kdgat_calibrate_begin(&program.detector, &work);
    code = collect_all(&found);
    if (code == 0) {
        code = expect_enough(&found);
    }
    if (code != 0) {
        return code;
    }
    status = kdgat_calibrate_end(&program.detector, &work);
    if (status != KDGAT_OK) {
        fprintf(stderr, "error: no calibration from %s: %s\n", frames_in.name, saved_problem(status));
        return EXIT_INPUT;
    }
    code = saved_expect_free(asked->save, asked->replaces);
    if (code == 0) {
        code = saved_write(&program.detector, asked->save);
    }
    if (code != 0) {
        return code;
    }
    printf("attacks are scores above %.2f on this car's scale: usual spreads above its usual score (from %u attack-free windows "
           "(%.1f s%s))\nwritten: %s\n",
           program.detector.calibration.threshold, (unsigned)work.windows, found.seconds, found.logs > 1 ? ", several logs" : "", asked->save);
    if ((double)work.windows < enough) {
        printf("warning: a false-positive rate of %g needs at least %.0f windows, and there are %u:%s a larger share of other "
               "windows may exceed the threshold; calibrate with longer traffic\n",
               KDGAT_CALIBRATION_RATE, ceil(enough), (unsigned)work.windows,
               /* a model of the profile set keeps its own threshold unless the windows contradict it */
               KDGAT_FEATURES == KDGAT_FEATURES_PROFILE ? "" : " the threshold is their highest score, and");
    }
    return fflush(stdout) == 0 ? 0 : EXIT_MACHINE;
}

#endif

int main(int count, char **arguments)
{
    const options *const asked = &program.asked;
    int code;

    switch (options_read(&program.asked, count, arguments)) {
    case OPTIONS_PRINTED:
        return fflush(stdout) == 0 ? 0 : EXIT_MACHINE;
    case OPTIONS_WRONG:
        return EXIT_INPUT;
    case OPTIONS_RUN:
        break;
    }
    listen_to_signals();
    kdgat_init(&program.detector);
    code = asked->interface != NULL ? input_open_can(&frames_in, asked->interface)
                                    : input_open(&frames_in, asked->file, asked->max_reject_share);
    if (code != 0) {
        return code;
    }
#if !KDGAT_PAIR
    if (asked->save != NULL) {
        return run_calibration();
    }
#endif
    return run_detection();
}
