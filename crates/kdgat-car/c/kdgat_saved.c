/* Saves and loads a calibration: numbers in little-endian order whatever the machine, then a checksum.
 *
 *   magic u32, version u32, model u64, precision u32, values u32, median f64, spread f64, threshold f64,
 *   profile set: counts_bytes u32, surprise f32, number u32, for each of KDGAT_CALIBRATION_IDS IDs, zeros after the last: ID u32, 10 values f32 in the
 *     order of kdgat_usual, change_high u8 [8], change_most u8 [8], longest_standstill u8, repeating u8, seen u8 [8][32]
 *   classifier with a list of IDs: evidence f64, number u32, IDs u32 [KDGAT_CALIBRATION_IDS], zeros after the last
 *   autoencoder: means f64, rows of the factor f64
 *   CRC-32 of all bytes before it, u32 */
#include "kdgat_calibrate.h"

#include <stddef.h>
#include <string.h>

#define MAGIC 0x4347444bu /* "KDGC" */
#define VERSION 4u

#if KDGAT_ID_LIST
#define VALUES KDGAT_CALIBRATION_IDS
#elif KDGAT_MODEL == KDGAT_MODEL_VGAE
#define VALUES KDGAT_PROFILE_VALUES
#else
#define VALUES 0u
#endif

static void put_u32(uint8_t **to, uint32_t value)
{
    uint32_t i;
    for (i = 0; i < 4u; i++) {
        *(*to)++ = (uint8_t)(value >> (8u * i));
    }
}

static void put_u64(uint8_t **to, uint64_t value)
{
    put_u32(to, (uint32_t)(value & 0xffffffffu));
    put_u32(to, (uint32_t)(value >> 32));
}

static void put_f64(uint8_t **to, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_u64(to, bits);
}

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

static void put_f32(uint8_t **to, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_u32(to, bits);
}

static void put_bytes(uint8_t **to, const uint8_t *bytes, uint32_t number)
{
    memcpy(*to, bytes, number);
    *to += number;
}

static void put_profile(uint8_t **to, const kdgat_calibration_state *car)
{
    uint32_t i;
    put_u32(to, car->counts_bytes);
    put_f32(to, car->new_id_surprise);
    put_u32(to, car->num_usual);
    for (i = 0; i < KDGAT_CALIBRATION_IDS; i++) {
        const kdgat_usual *const usual = &car->usual[i];
        if (i >= car->num_usual) {
            memset(*to, 0, KDGAT_SAVED_ID);
            *to += KDGAT_SAVED_ID;
            continue;
        }
        put_u32(to, usual->id);
        put_f32(to, usual->gaps);
        put_f32(to, usual->gap_low);
        put_f32(to, usual->gap_median);
        put_f32(to, usual->gap_mean);
        put_f32(to, usual->gap_high);
        put_f32(to, usual->watched);
        put_f32(to, usual->longest_silence);
        put_f32(to, usual->repeats);
        put_f32(to, usual->returns);
        put_f32(to, usual->changed_bytes);
        put_bytes(to, usual->change_high, sizeof usual->change_high);
        put_bytes(to, usual->change_most, sizeof usual->change_most);
        put_bytes(to, &usual->longest_standstill, 1u);
        put_bytes(to, &usual->repeating, 1u);
        put_bytes(to, usual->seen[0], sizeof usual->seen);
    }
}

#endif

static uint32_t get_u32(const uint8_t **from)
{
    uint32_t value = 0, i;
    for (i = 0; i < 4u; i++) {
        value |= (uint32_t) * (*from)++ << (8u * i);
    }
    return value;
}

static uint64_t get_u64(const uint8_t **from)
{
    const uint64_t low = get_u32(from);
    return low | (uint64_t)get_u32(from) << 32;
}

static double get_f64(const uint8_t **from)
{
    const uint64_t bits = get_u64(from);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* CRC-32 (IEEE 802.3), bit by bit: it is computed rarely. */
static uint32_t crc32(const uint8_t *bytes, uint32_t length)
{
    uint32_t crc = 0xffffffffu, i, bit;
    for (i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (bit = 0; bit < 8u; bit++) {
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

uint32_t kdgat_save(const kdgat_state *state, uint8_t *bytes, uint32_t capacity)
{
    const kdgat_calibration_state *const car = &state->calibration;
    uint8_t *to = bytes;
#if KDGAT_ID_LIST || KDGAT_MODEL == KDGAT_MODEL_VGAE
    uint32_t i;
#endif

    if (!car->calibrated || capacity < KDGAT_SAVED_BYTES) {
        return 0;
    }
    put_u32(&to, MAGIC);
    put_u32(&to, VERSION);
    put_u64(&to, KDGAT_MODEL_DIGEST);
    put_u32(&to, KDGAT_INT8);
    put_u32(&to, VALUES);
    put_f64(&to, car->median);
    put_f64(&to, car->spread);
    put_f64(&to, car->threshold);
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    put_profile(&to, car);
#endif
#if KDGAT_ID_LIST
    put_f64(&to, car->evidence);
    put_u32(&to, car->num_ids);
    for (i = 0; i < KDGAT_CALIBRATION_IDS; i++) {
        put_u32(&to, i < car->num_ids ? car->ids[i] : 0u);
    }
#elif KDGAT_MODEL == KDGAT_MODEL_VGAE
    for (i = 0; i < KDGAT_PROFILE_VALUES; i++) {
        put_f64(&to, car->mean[i]);
    }
    for (i = 0; i < KDGAT_FACTOR_VALUES; i++) {
        put_f64(&to, car->factor[i]);
    }
#endif
    put_u32(&to, crc32(bytes, KDGAT_SAVED_BYTES - 4u));
    return KDGAT_SAVED_BYTES;
}

/* Returns 1 for NaN and infinity. */
static int is_no_number(double value)
{
    return !(value - value == 0.0);
}

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

static float get_f32(const uint8_t **from)
{
    const uint32_t bits = get_u32(from);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void get_usual(const uint8_t **from, kdgat_usual *usual)
{
    usual->id = get_u32(from);
    usual->gaps = get_f32(from);
    usual->gap_low = get_f32(from);
    usual->gap_median = get_f32(from);
    usual->gap_mean = get_f32(from);
    usual->gap_high = get_f32(from);
    usual->watched = get_f32(from);
    usual->longest_silence = get_f32(from);
    usual->repeats = get_f32(from);
    usual->returns = get_f32(from);
    usual->changed_bytes = get_f32(from);
    memcpy(usual->change_high, *from, sizeof usual->change_high);
    *from += sizeof usual->change_high;
    memcpy(usual->change_most, *from, sizeof usual->change_most);
    *from += sizeof usual->change_most;
    usual->longest_standstill = *(*from)++;
    usual->repeating = *(*from)++;
    memcpy(usual->seen, *from, sizeof usual->seen);
    *from += sizeof usual->seen;
}

/* Returns 1 for a finite number from 0 on. */
static int is_amount(float value)
{
    return !is_no_number((double)value) && value >= 0.0f;
}

/* Reads a profile into car unless it is NULL; returns 0 if a value is out of range. */
static int get_profile(const uint8_t **from, kdgat_calibration_state *car)
{
    const uint32_t counts_bytes = get_u32(from);
    const float surprise = get_f32(from);
    const uint32_t number = get_u32(from);
    kdgat_usual usual;
    uint32_t i, before = 0;

    if (counts_bytes > 1u || !is_amount(surprise) || number > KDGAT_CALIBRATION_IDS) {
        return 0;
    }
    if (car != NULL) {
        car->counts_bytes = (uint8_t)counts_bytes;
        car->new_id_surprise = surprise;
        car->num_usual = number;
    }
    for (i = 0; i < KDGAT_CALIBRATION_IDS; i++) {
        get_usual(from, &usual);
        if (i < number
            && (!is_amount(usual.gaps) || !is_amount(usual.gap_low) || !is_amount(usual.gap_median) || !is_amount(usual.gap_mean)
                || !is_amount(usual.gap_high) || !is_amount(usual.watched) || !is_amount(usual.longest_silence) || !is_amount(usual.repeats)
                || !is_amount(usual.returns) || !is_amount(usual.changed_bytes) || (i > 0u && usual.id <= before))) {
            return 0;
        }
        before = usual.id;
        if (car != NULL) {
            car->usual[i] = usual;
        }
    }
    return 1;
}

#endif

#if KDGAT_ID_LIST

/* Reads a list of IDs into car unless it is NULL; returns 0 if a value is out of range. */
static int get_list(const uint8_t **from, kdgat_calibration_state *car)
{
    const double evidence = get_f64(from);
    const uint32_t number = get_u32(from);
    uint32_t i, before = 0;

    if (is_no_number(evidence) || evidence < 0.0 || number > KDGAT_CALIBRATION_IDS) {
        return 0;
    }
    if (car != NULL) {
        car->evidence = evidence;
        car->num_ids = number;
    }
    for (i = 0; i < number; i++) {
        const uint32_t id = get_u32(from);
        if (i > 0u && id <= before) {
            return 0;
        }
        before = id;
        if (car != NULL) {
            car->ids[i] = id;
        }
    }
    return 1;
}

#elif KDGAT_MODEL == KDGAT_MODEL_VGAE

/* Reads the usual errors into car unless it is NULL; returns 0 if a value is out of range. */
static int get_errors(const uint8_t **from, kdgat_calibration_state *car)
{
    uint32_t row, column, at = 0;

    for (row = 0; row < KDGAT_PROFILE_VALUES; row++) {
        const double mean = get_f64(from);
        if (is_no_number(mean)) {
            return 0;
        }
        if (car != NULL) {
            car->mean[row] = mean;
        }
    }
    for (row = 0; row < KDGAT_PROFILE_VALUES; row++) {
        for (column = 0; column <= row; column++, at++) {
            const double value = get_f64(from);
            if (is_no_number(value) || (column == row && !(value > 0.0))) {
                return 0;
            }
            if (car != NULL) {
                car->factor[at] = value;
            }
        }
    }
    return 1;
}

#endif

/* Reads the values after the header into car unless it is NULL; returns 0 if one is out of range. */
static int get_values(const uint8_t *from, kdgat_calibration_state *car)
{
    const double median = get_f64(&from), spread = get_f64(&from), threshold = get_f64(&from);

    if (is_no_number(median) || is_no_number(spread) || is_no_number(threshold) || !(spread > 0.0)) {
        return 0;
    }
    if (car != NULL) {
        car->median = median;
        car->spread = spread;
        car->threshold = threshold;
        car->calibrated = 1;
    }
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    if (!get_profile(&from, car)) {
        return 0;
    }
#endif
#if KDGAT_ID_LIST
    return get_list(&from, car);
#elif KDGAT_MODEL == KDGAT_MODEL_VGAE
    return get_errors(&from, car);
#else
    return 1;
#endif
}

kdgat_status kdgat_load(kdgat_state *state, const uint8_t *bytes, uint32_t length)
{
    const uint8_t *from = bytes, *end;

    if (length != KDGAT_SAVED_BYTES) {
        return KDGAT_LENGTH;
    }
    if (get_u32(&from) != MAGIC || get_u32(&from) != VERSION) {
        return KDGAT_NO_CALIBRATION;
    }
    end = bytes + KDGAT_SAVED_BYTES - 4u;
    if (get_u32(&end) != crc32(bytes, KDGAT_SAVED_BYTES - 4u)) {
        return KDGAT_CHECKSUM;
    }
    if (get_u64(&from) != KDGAT_MODEL_DIGEST || get_u32(&from) != KDGAT_INT8 || get_u32(&from) != VALUES) {
        return KDGAT_OTHER_MODEL;
    }
    /* First without storing: a bad value must leave the calibration in use as it is. */
    if (!get_values(from, NULL)) {
        return KDGAT_VALUES;
    }
    memset(&state->calibration, 0, sizeof state->calibration);
    (void)get_values(from, &state->calibration);
    kdgat_forget_gone(state);
    return KDGAT_OK;
}
