/* Calibration for one car: a scale and a threshold from a few seconds of its attack-free traffic, without labels.
 *
 *   static kdgat_calibration work;            // only needed while calibrating
 *   kdgat_calibrate_begin(&detector, &work);
 *   for each frame of the recording: kdgat_calibrate_push(&detector, &work, &frame);
 *   // another recording: kdgat_calibrate_next_log(&detector, &work); and its frames
 *   if (kdgat_calibrate_end(&detector, &work) == KDGAT_OK) { length = kdgat_save(&detector, bytes, sizeof bytes); }
 *
 * Use at least some ten seconds of driving; with fewer than 1 / KDGAT_CALIBRATION_RATE windows, the threshold is the highest deviation
 * among them. */
#ifndef KDGAT_CALIBRATE_H
#define KDGAT_CALIBRATE_H

#include "kdgat_learn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Most windows that a calibration uses; those after them are ignored. A kdgat_calibration needs 40 to 110 bytes for each (more with
 * the rich features; with the profile set 64 bytes for each frame, since it learns the car's profile at the end). */
#ifndef KDGAT_CALIBRATION_WINDOWS
#define KDGAT_CALIBRATION_WINDOWS 1200u
#endif

/* Fewest windows. */
#define KDGAT_FEWEST_WINDOWS 10u

/* Results of the functions below. */
typedef enum {
    KDGAT_OK = 0,
    KDGAT_FULL,        /* the frame was ignored: there are KDGAT_CALIBRATION_WINDOWS windows */
    KDGAT_TOO_FEW,     /* fewer than KDGAT_FEWEST_WINDOWS windows */
    KDGAT_NOT_FINITE,  /* the scores of the windows give no finite scale */
    KDGAT_LENGTH,      /* not as many bytes as a calibration of this model has */
    KDGAT_NO_CALIBRATION, /* the bytes do not begin like a calibration, or have another version */
    KDGAT_OTHER_MODEL, /* the calibration belongs to another model */
    KDGAT_CHECKSUM,    /* the bytes are damaged */
    KDGAT_VALUES,      /* a value is not finite or out of range */
    KDGAT_MANY_IDS     /* profile set: the traffic has more than KDGAT_CALIBRATION_IDS IDs */
} kdgat_status;

/* Windows of a calibration in progress. Its contents are private. */
typedef struct {
    uint32_t windows;
    double values[KDGAT_CALIBRATION_WINDOWS];
#if KDGAT_MODEL == KDGAT_MODEL_VGAE
    float errors[KDGAT_CALIBRATION_WINDOWS][KDGAT_PROFILE_VALUES];
    double centred[KDGAT_PROFILE_VALUES];
#else
    float raw[KDGAT_CALIBRATION_WINDOWS];
#endif
#if KDGAT_ID_LIST
    uint8_t foreign[KDGAT_CALIBRATION_WINDOWS];
    uint32_t first[KDGAT_CALIBRATION_IDS]; /* windows that have an ID: the first and the last, and a bit for each */
    uint32_t last[KDGAT_CALIBRATION_IDS];
    uint8_t has_id[KDGAT_CALIBRATION_WINDOWS][(KDGAT_CALIBRATION_IDS + 7u) / 8u];
    uint8_t overflows; /* 1: more than KDGAT_CALIBRATION_IDS IDs */
#endif
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    uint32_t num_frames;
    uint32_t log_begin;   /* first frame of the log that is read, and number of the windows before it */
    uint32_t log_windows;
    uint8_t begins_log[KDGAT_CALIBRATION_WINDOWS / 8u + 1u]; /* a bit for each window: it is the first of a further log */
    kdgat_frame frames[KDGAT_FRAMES_OF(KDGAT_CALIBRATION_WINDOWS)];
    kdgat_fact facts[KDGAT_FRAMES_OF(KDGAT_CALIBRATION_WINDOWS)];
    kdgat_counts counts;
#endif
    kdgat_calibration_state car;
} kdgat_calibration;

/* Starts a calibration. A calibration in use stays until kdgat_calibrate_end succeeds; the detector's frames are dropped. */
void kdgat_calibrate_begin(kdgat_state *state, kdgat_calibration *work);

/* Begins another log: its windows have no frame of the logs before, and its first frames follow on none of theirs. */
void kdgat_calibrate_next_log(kdgat_state *state, kdgat_calibration *work);

/* Adds a frame. Returns KDGAT_OK, or KDGAT_FULL. */
kdgat_status kdgat_calibrate_push(kdgat_state *state, kdgat_calibration *work, const kdgat_frame *frame);

/* Ends a calibration: on KDGAT_OK, the detector uses it from the next frame on. Otherwise (KDGAT_TOO_FEW, KDGAT_NOT_FINITE, KDGAT_MANY_IDS)
 * the detector keeps what it had. The detector's frames are dropped either way. For a list of IDs, more than KDGAT_CALIBRATION_IDS make no
 * error, but then unknown IDs are no evidence. With the profile set this scores all windows, otherwise it is a matter of milliseconds. */
kdgat_status kdgat_calibrate_end(kdgat_state *state, kdgat_calibration *work);

/* Drops the calibration: the model's own threshold decides again. */
void kdgat_calibrate_none(kdgat_state *state);

/* Bytes of a saved calibration. The format is the same on all machines. */
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
/* An ID of the profile. */
#define KDGAT_SAVED_ID (46u + 34u * KDGAT_PROFILE_BYTES)
#define KDGAT_SAVED_PROFILE (12u + KDGAT_SAVED_ID * KDGAT_CALIBRATION_IDS)
#else
#define KDGAT_SAVED_PROFILE 0u
#endif
#if KDGAT_ID_LIST
#define KDGAT_SAVED_BYTES (52u + KDGAT_SAVED_PROFILE + 12u + 4u * KDGAT_CALIBRATION_IDS)
#elif KDGAT_MODEL == KDGAT_MODEL_VGAE
#define KDGAT_SAVED_BYTES (52u + KDGAT_SAVED_PROFILE + 8u * (KDGAT_PROFILE_VALUES + KDGAT_FACTOR_VALUES))
#else
#define KDGAT_SAVED_BYTES (52u + KDGAT_SAVED_PROFILE)
#endif

/* Writes the calibration to bytes[0] to bytes[KDGAT_SAVED_BYTES - 1]; returns that number, or 0 if there is no calibration or
 * capacity is less. */
uint32_t kdgat_save(const kdgat_state *state, uint8_t *bytes, uint32_t capacity);

/* Reads a calibration of this model. On anything but KDGAT_OK the detector keeps what it had. */
kdgat_status kdgat_load(kdgat_state *state, const uint8_t *bytes, uint32_t length);

#ifdef __cplusplus
}
#endif

#endif
