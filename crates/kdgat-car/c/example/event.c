#include "event.h"

#include <math.h>
#include <string.h>

const char *event_name(event_kind kind)
{
    static const char *const names[] = {"alarm", "alarm-change", "alarm-end", "silence", "silence-end", "heartbeat"};
    return names[kind];
}

const char *event_severity(alarm_severity severity)
{
    static const char *const names[] = {"low", "medium", "high"};
    return names[severity];
}

static void add_double(text *to, const char *name, double number)
{
    text_add(to, name);
    text_double(to, number);
}

static void add_count(text *to, const char *name, uint64_t number)
{
    text_add(to, name);
    text_count(to, number);
}

/* `{"event":"alarm","alarm":1` and so on. */
static text begin(event *made, event_kind kind)
{
    text json = text_in(made->json, sizeof made->json);
    made->kind = kind;
    text_add(&json, "{\"event\":\"");
    text_add(&json, event_name(kind));
    text_add(&json, "\"");
    return json;
}

static void add_culprits(text *json, const alarm_event *from)
{
    uint32_t at;
    text_add(json, ",\"culprits\":[");
    for (at = 0; at < from->num_culprits; at++) {
        text_add(json, at == 0u ? "{\"id\":\"" : ",{\"id\":\"");
        text_id(json, from->culprit[at].id);
        add_count(json, "\",\"windows\":", from->culprit[at].windows);
        text_add(json, "}");
    }
    text_add(json, "]");
}

/* The IDs that are gone, if any. */
static void add_gone(text *json, const uint32_t *ids, uint8_t number)
{
    uint8_t at;
    if (number == 0u) {
        return;
    }
    for (at = 0; at < number; at++) {
        text_add(json, at == 0u ? ",\"gone\":[\"" : "\",\"");
        text_id(json, ids[at]);
    }
    text_add(json, "\"]");
}

static void add_severity(text *json, alarm_severity severity)
{
    text_add(json, ",\"severity\":\"");
    text_add(json, event_severity(severity));
    text_add(json, "\"");
}

static void add_deviations(text *json, const char *name, double deviations)
{
    if (!isnan(deviations)) {
        add_double(json, name, deviations);
    }
}

/* The figures of a begin or a change. */
static void add_begin(text *json, const alarm_event *from)
{
    const int begins = from->kind == ALARM_BEGIN;
    if (begins) {
        add_double(json, ",\"since\":", from->since);
    }
    add_count(json, ",\"window\":", from->window);
    add_double(json, ",\"score\":", from->score);
    add_deviations(json, ",\"deviations\":", from->deviations);
    add_severity(json, from->severity);
    add_count(json, ",\"attack_windows\":", from->attack_windows);
    if (begins) {
        add_count(json, ",\"suppressed\":", from->suppressed);
    }
    add_culprits(json, from);
    if (!begins) {
        static const char *const names[] = {"", "severity", "culprits", "gone"};
        text_add(json, ",\"changed\":\"");
        text_add(json, names[from->news]);
        text_add(json, "\"");
    }
    add_gone(json, from->gone, from->num_gone);
}

static void add_end(text *json, const alarm_event *from)
{
    add_double(json, ",\"duration_seconds\":", from->duration_seconds);
    add_count(json, ",\"windows\":", from->windows);
    add_count(json, ",\"attack_windows\":", from->attack_windows);
    add_double(json, ",\"highest_score\":", from->score);
    add_deviations(json, ",\"highest_deviations\":", from->deviations);
    add_severity(json, from->severity);
    add_culprits(json, from);
    text_add(json, from->cleared ? ",\"ended_by\":\"clear\"" : ",\"ended_by\":\"end\"");
}

void event_from_alarm(event *made, const alarm_event *from)
{
    static const event_kind kinds[] = {EVENT_ALARM, EVENT_ALARM, EVENT_ALARM_CHANGE, EVENT_ALARM_END};
    text json;
    uint32_t at;

    memset(made, 0, sizeof *made);
    json = begin(made, kinds[from->kind]);
    made->has_time = 1;
    made->time = from->time;
    made->alarm = from->alarm;
    made->score = from->score;
    made->severity = from->severity;
    made->num_culprits = from->num_culprits;
    for (at = 0; at < from->num_culprits; at++) {
        made->culprit[at] = from->culprit[at].id;
    }
    add_count(&json, ",\"alarm\":", from->alarm);
    add_double(&json, ",\"time\":", from->time);
    if (from->kind == ALARM_END) {
        add_end(&json, from);
    } else {
        add_begin(&json, from);
    }
    text_add(&json, "}");
}

void event_from_bus(event *made, const bus_event *from)
{
    static const event_kind kinds[] = {EVENT_SILENCE, EVENT_SILENCE_END, EVENT_HEARTBEAT};
    text json;

    memset(made, 0, sizeof *made);
    json = begin(made, kinds[from->kind]);
    made->has_time = from->has_time;
    made->time = from->time;
    text_add(&json, ",\"time\":");
    if (from->has_time) {
        text_double(&json, from->time);
    } else {
        text_add(&json, "null");
    }
    switch (from->kind) {
    case BUS_SILENCE:
        add_double(&json, ",\"limit_seconds\":", from->seconds);
        break;
    case BUS_SILENCE_END:
        add_double(&json, ",\"seconds\":", from->seconds);
        break;
    case BUS_HEARTBEAT:
        add_count(&json, ",\"frames\":", from->frames);
        add_count(&json, ",\"windows\":", from->windows);
        add_count(&json, ",\"alarms\":", from->alarms);
        add_count(&json, ",\"suppressed\":", from->suppressed);
        text_add(&json, from->silent ? ",\"silent\":true" : ",\"silent\":false");
        if (from->has_reject_share) {
            add_double(&json, ",\"reject_share\":", from->reject_share);
        }
        break;
    }
    text_add(&json, "}");
}

void event_window(text *to, const kdgat_result *result, int attack)
{
    add_count(to, "{\"window\":", result->window);
    add_count(to, ",\"first_frame\":", result->first_frame);
    add_double(to, ",\"time\":", result->time);
    add_double(to, ",\"score\":", result->score);
#if KDGAT_PAIR
    add_double(to, ",\"scores\":{\"gat\":", result->classifier);
    add_double(to, ",\"vgae\":", result->autoencoder);
    text_add(to, "}");
#endif
    text_add(to, attack ? ",\"label\":\"attack\",\"id\":\"" : ",\"label\":\"normal\",\"id\":\"");
    text_id(to, result->id[0]);
    text_add(to, "\",\"contribution\":");
    text_float(to, result->weight[0]);
    if (result->calibrated) {
        add_double(to, ",\"deviations\":", result->deviations);
    }
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    if (attack && result->num_culprits > 0u) {
        uint32_t at;
        text_add(to, ",\"culprits\":[");
        for (at = 0; at < result->num_culprits; at++) {
            text_add(to, at == 0u ? "{\"id\":\"" : ",{\"id\":\"");
            text_id(to, result->culprit[at]);
            text_add(to, "\"}");
        }
        text_add(to, "]");
    }
    add_gone(to, result->gone, result->num_gone);
#endif
    text_add(to, "}");
}
