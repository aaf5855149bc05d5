/* The JSON lines of `kdgat detect`: one for a window, or with --alarms one for an event. */
#ifndef KDGAT_EVENT_H
#define KDGAT_EVENT_H

#include "alarm.h"
#include "bus.h"
#include "kdgat_car.h"
#include "text.h"

#define EVENT_MOST_BYTES 1024

typedef enum event_kind {
    EVENT_ALARM,
    EVENT_ALARM_CHANGE,
    EVENT_ALARM_END,
    EVENT_SILENCE,
    EVENT_SILENCE_END,
    EVENT_HEARTBEAT
} event_kind;

/* An event, as its receivers need it. */
typedef struct event {
    event_kind kind;
    uint8_t has_time;
    double time;
    /* Of alarm, alarm-change and alarm-end. */
    uint64_t alarm;
    double score;
    alarm_severity severity;
    uint8_t num_culprits;
    uint32_t culprit[ALARM_MOST_LISTED];
    /* The line, without its newline. */
    char json[EVENT_MOST_BYTES];
} event;

/* Name in the field `event`. */
const char *event_name(event_kind kind);
const char *event_severity(alarm_severity severity);

/* Events from those of the state machines; an alarm_event must not be ALARM_NONE. */
void event_from_alarm(event *made, const alarm_event *from);
void event_from_bus(event *made, const bus_event *from);

/* Appends the line of a window, without its newline. attack: the verdict, which a threshold of the user may have changed. */
void event_window(text *to, const kdgat_result *result, int attack);

#endif
