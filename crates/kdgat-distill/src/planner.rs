//! Chooses the residency of the teacher's weights from measured numbers and shows the arithmetic.
//!
//! A pure function: measurements in, a choice and a few lines for the user out.

use super::shuttle::VisitKind;

/// Safety factor on planned amounts of memory, for fragmentation.
const MARGIN: f64 = 1.1;
/// Negligible cost, as a share of a step or of free memory.
const NOTHING: f64 = 0.01;
/// Factor between a measured and a planned number above which a new plan is made.
const SURPRISE: f64 = 2.0;

/// Measurements for a plan. `None` for a number that has not been measured yet.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    /// True if the device's memory is host memory.
    pub device_is_host: bool,
    /// Bytes of the teacher's weights.
    pub teacher_bytes: u64,
    /// Bytes of weights on the device under `layer`.
    pub ring_bytes: u64,
    /// Number of the teacher's layers.
    pub layers: usize,
    /// Layers on the device at once under `layer`.
    pub layer_slots: usize,
    /// Bytes that the forward of one batch needs besides the weights.
    pub activation_bytes: Option<u64>,
    /// Copy rate of weights to the device, in bytes per millisecond.
    pub copy_bytes_per_ms: Option<f64>,
    /// Milliseconds of the forward of one batch.
    pub forward_ms: Option<f64>,
    /// Milliseconds of a student's step.
    pub step_ms: Option<f64>,
    /// Bytes free at the student's peak.
    pub free_at_peak_bytes: Option<u64>,
    /// Bytes free between two steps of the student.
    pub free_between_steps_bytes: Option<u64>,
    /// Batches that one visit serves.
    pub burst: usize,
    /// Batches per epoch.
    pub batches_per_epoch: u64,
    /// Remaining epochs, the current one included.
    pub epochs_left: u64,
    /// True if targets are cached: then the teacher runs once per graph.
    pub cached: bool,
}

/// A choice and its reasons.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The chosen kind of visit.
    pub kind: VisitKind,
    /// The arithmetic, in a few lines for the user.
    pub lines: Vec<String>,
}

/// Chooses the residency of the weights: the fastest one that fits the free memory.
pub fn plan(measured: &Measured) -> Plan {
    let mut lines = vec![describe(measured)];
    lines.extend(teacher_cost(measured));
    let slots = measured.layer_slots.clamp(1, measured.layers.max(1));
    let (kind, reason) = if measured.device_is_host {
        let reason = "the device is the host: the weights are in its memory anyway, and resident costs nothing";
        (VisitKind::Resident, reason.to_string())
    } else if let Some(reason) = resident_fits(measured) {
        (VisitKind::Resident, reason)
    } else if let Some(reason) = whole_fits(measured) {
        (VisitKind::Forward, reason)
    } else {
        (VisitKind::Layer { slots }, by_layer(measured, slots))
    };
    lines.push(format!("teacher: {}: {reason}", kind.residency()));
    Plan { kind, lines }
}

/// True if a measurement differs from the planned number by more than a factor of two, or exists on one side only.
pub fn is_surprised(planned: &Measured, now: &Measured) -> bool {
    let far = |planned: Option<f64>, now: Option<f64>| match (planned, now) {
        (Some(planned), Some(now)) => planned > now * SURPRISE || now > planned * SURPRISE,
        (None, None) => false,
        _ => true,
    };
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    far(bytes(planned.activation_bytes), bytes(now.activation_bytes))
        || far(planned.copy_bytes_per_ms, now.copy_bytes_per_ms)
        || far(planned.forward_ms, now.forward_ms)
        || far(planned.step_ms, now.step_ms)
        || far(bytes(planned.free_at_peak_bytes), bytes(now.free_at_peak_bytes))
        || far(bytes(planned.free_between_steps_bytes), bytes(now.free_between_steps_bytes))
}

fn describe(measured: &Measured) -> String {
    let or_unknown = |bytes: Option<u64>| bytes.map_or("unknown".to_string(), format_bytes);
    format!(
        "teacher: {} of weights, activations of a batch {}; free at the student's peak {}, between steps {}",
        format_bytes(measured.teacher_bytes),
        or_unknown(measured.activation_bytes),
        or_unknown(measured.free_at_peak_bytes),
        or_unknown(measured.free_between_steps_bytes)
    )
}

/// The cost of the teacher's forwards and the time that the cache saves.
fn teacher_cost(measured: &Measured) -> Option<String> {
    let (forward_ms, step_ms) = (measured.forward_ms?, measured.step_ms?);
    let epoch_s = forward_ms * measured.batches_per_epoch as f64 / 1e3;
    let share = 100.0 * forward_ms / step_ms.max(f64::MIN_POSITIVE);
    let cost =
        format!("teacher: a forward takes {forward_ms:.1} ms, {share:.0} % of a student's step of {step_ms:.1} ms");
    let epochs = measured.epochs_left;
    Some(if measured.cached {
        let spared = epoch_s * epochs.saturating_sub(1) as f64;
        format!("{cost}; cached, it runs in one epoch ({epoch_s:.0} s) of {epochs} and the cache saves {spared:.0} s")
    } else {
        format!("{cost}; without a cache it runs in each of {epochs} epochs ({:.0} s)", epoch_s * epochs as f64)
    })
}

fn resident_fits(measured: &Measured) -> Option<String> {
    let free = measured.free_at_peak_bytes?;
    let needed = measured.teacher_bytes;
    let share = needed as f64 / free.max(1) as f64;
    // The teacher's activations exist between two steps, when the student's are freed.
    let with_activations = needed + measured.activation_bytes.unwrap_or(0);
    let does_not_fit = |bytes: u64, free: u64| bytes as f64 * MARGIN > free as f64;
    if does_not_fit(needed, free)
        || measured.free_between_steps_bytes.is_some_and(|free| does_not_fit(with_activations, free))
    {
        return None;
    }
    let what = if share < NOTHING { "costs nothing" } else { "fits" };
    Some(format!(
        "it {what}: {} of {} free ({:.1} %), no copy in a step",
        format_bytes(needed),
        format_bytes(free),
        share * 100.0
    ))
}

fn whole_fits(measured: &Measured) -> Option<String> {
    let needed = measured.teacher_bytes + measured.activation_bytes.unwrap_or(0);
    // Memory is unknown before the first visit, and a visit measures it.
    if measured.free_between_steps_bytes.is_some_and(|free| needed as f64 * MARGIN > free as f64) {
        return None;
    }
    let burst = measured.burst.max(1);
    let Some(rate) = measured.copy_bytes_per_ms else {
        return Some("nothing is measured yet; a visit loads the weights and drops them afterwards".to_string());
    };
    let copy_ms = measured.teacher_bytes as f64 / rate.max(f64::MIN_POSITIVE);
    let per_step = copy_ms / burst as f64;
    let share =
        measured.step_ms.map_or(String::new(), |step_ms| format!(" ({:.1} % of a step)", 100.0 * per_step / step_ms));
    Some(format!(
        "the weights do not fit at the student's peak; a visit copies them in {copy_ms:.1} ms and serves {burst} batches: \
         {per_step:.2} ms a step{share}, and no memory at the peak"
    ))
}

fn by_layer(measured: &Measured, slots: usize) -> String {
    let needed = measured.ring_bytes + measured.activation_bytes.unwrap_or(0);
    let fits = measured.free_between_steps_bytes.is_none_or(|free| needed as f64 * MARGIN <= free as f64);
    let advice = if fits { "" } else { "; that does not fit either: use a smaller batch or fewer layer slots" };
    format!(
        "the weights do not fit between two steps; {slots} of {} layers at a time take {} with their activations{advice}",
        measured.layers,
        format_bytes(needed)
    )
}

/// Formats bytes with a decimal unit: `6.6 MB`.
pub fn format_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 1000.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn measured() -> Measured {
        Measured {
            teacher_bytes: 200 * MB,
            ring_bytes: 100 * MB,
            layers: 4,
            layer_slots: 2,
            activation_bytes: Some(100 * MB),
            copy_bytes_per_ms: Some(20.0 * MB as f64),
            forward_ms: Some(8.0),
            step_ms: Some(20.0),
            free_at_peak_bytes: Some(1000 * MB),
            free_between_steps_bytes: Some(4000 * MB),
            burst: 16,
            batches_per_epoch: 100,
            epochs_left: 50,
            ..Measured::default()
        }
    }

    #[test]
    fn a_small_teacher_stays_and_the_plan_says_that_it_costs_nothing() {
        let plan = plan(&Measured { teacher_bytes: 7 * MB, ..measured() });
        assert_eq!(plan.kind, VisitKind::Resident);
        assert!(plan.lines.iter().any(|line| line.contains("costs nothing")), "{plan:?}");
        let on_host = super::plan(&Measured { device_is_host: true, free_at_peak_bytes: None, ..measured() });
        assert_eq!(on_host.kind, VisitKind::Resident);
    }

    #[test]
    fn less_memory_means_forward_then_layers() {
        assert_eq!(plan(&measured()).kind, VisitKind::Resident);
        let tight = Measured { free_at_peak_bytes: Some(150 * MB), ..measured() };
        let forward = plan(&tight);
        assert_eq!(forward.kind, VisitKind::Forward);
        // 200 MB at 20 MB per millisecond take 10 ms for 16 batches: 0.62 ms per step of 20 ms.
        assert!(forward.lines.iter().any(|line| line.contains("0.62 ms a step (3.1 % of a step)")), "{forward:?}");
        let tighter = Measured { free_between_steps_bytes: Some(250 * MB), ..tight };
        let layers = plan(&tighter);
        assert_eq!(layers.kind, VisitKind::Layer { slots: 2 });
        assert!(!layers.lines.iter().any(|line| line.contains("smaller batch")), "{layers:?}");
        let hopeless = plan(&Measured { free_between_steps_bytes: Some(150 * MB), ..tighter });
        assert!(hopeless.lines.iter().any(|line| line.contains("smaller batch")), "{hopeless:?}");
    }

    #[test]
    fn a_resident_teachers_activations_have_to_fit_between_two_steps() {
        let room_for_weights = Measured { free_at_peak_bytes: Some(250 * MB), ..measured() };
        assert_eq!(plan(&room_for_weights).kind, VisitKind::Resident);
        let crowded = Measured { free_between_steps_bytes: Some(320 * MB), ..room_for_weights };
        assert_eq!(
            plan(&crowded).kind,
            VisitKind::Layer { slots: 2 },
            "200 MB of weights and 100 MB of activations, with a margin"
        );
    }

    #[test]
    fn nothing_known_is_a_visit() {
        let unknown = Measured { teacher_bytes: MB, layers: 3, layer_slots: 2, ..Measured::default() };
        assert_eq!(plan(&unknown).kind, VisitKind::Forward);
    }

    #[test]
    fn a_factor_of_two_is_a_surprise() {
        assert!(!is_surprised(&measured(), &Measured { forward_ms: Some(12.0), ..measured() }));
        assert!(is_surprised(&measured(), &Measured { forward_ms: Some(17.0), ..measured() }));
        assert!(is_surprised(&measured(), &Measured { free_at_peak_bytes: Some(400 * MB), ..measured() }));
        assert!(is_surprised(&Measured { step_ms: None, ..measured() }, &measured()));
    }

    #[test]
    fn the_cache_is_part_of_the_arithmetic() {
        let cached = plan(&Measured { cached: true, ..measured() });
        assert!(cached.lines.iter().any(|line| line.contains("saves 39 s")), "{cached:?}");
        assert_eq!(format_bytes(6_560_000), "6.6 MB");
        assert_eq!(format_bytes(12), "12 B");
    }
}
