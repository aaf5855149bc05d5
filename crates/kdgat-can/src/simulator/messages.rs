//! Table of the car's messages; `docs/data.md` describes them.

use super::bus::{Checksum, ControlUnit, Field, Message, Sending, b, message, w};
use super::vehicle::Signal::*;

/// All messages of the bus, lowest ID (highest priority) first.
pub static MESSAGES: [Message; 33] = {
    use Checksum::{Crc8, Sum, Xor};
    use ControlUnit::*;
    [
        periodic(
            0x0A0,
            10,
            Engine,
            8,
            &[
                w(0, EngineSpeed, 4.0, 0.0, 6.0),
                b(2, Torque, 0.8, 40.0, 0.8),
                b(3, Pedal, 2.5, 0.0, 0.3),
                b(4, Throttle, 2.5, 0.0, 0.6),
            ],
        )
        .counter(6)
        .checksum(Crc8),
        periodic(
            0x0B0,
            10,
            Brakes,
            8,
            &[w(0, WheelFrontLeft, 100.0, 0.0, 6.0), w(2, WheelFrontRight, 100.0, 0.0, 6.0)],
        )
        .counter(6)
        .checksum(Crc8),
        periodic(0x0B4, 10, Brakes, 8, &[w(0, WheelRearLeft, 100.0, 0.0, 6.0), w(2, WheelRearRight, 100.0, 0.0, 6.0)])
            .counter(6)
            .checksum(Crc8),
        periodic(
            0x0C2,
            10,
            Steering,
            7,
            &[
                w(0, SteeringAngle, 10.0, 32768.0, 0.8),
                b(2, SteeringRate, 0.3, 128.0, 0.5),
                b(3, SteeringTorque, 4.0, 128.0, 1.0),
            ],
        )
        .counter(5)
        .checksum(Xor),
        periodic(0x0D1, 20, Brakes, 6, &[w(0, Speed, 100.0, 0.0, 2.0), b(2, BrakeSwitch, 1.0, 0.0, 0.0)])
            .counter(4)
            .checksum(Sum),
        periodic(
            0x110,
            10,
            Engine,
            8,
            &[
                w(0, Torque, 10.0, 1000.0, 4.0),
                w(2, Torque, 9.0, 1000.0, 6.0),
                b(4, Pedal, 2.0, 0.0, 0.2),
                b(5, EngineSpeed, 0.025, 0.0, 0.2),
            ],
        )
        .counter(6)
        .checksum(Crc8),
        periodic(
            0x120,
            20,
            Brakes,
            8,
            &[
                w(0, YawRate, 100.0, 32768.0, 8.0),
                w(2, LateralAcceleration, 100.0, 32768.0, 12.0),
                w(4, LongitudinalAcceleration, 100.0, 32768.0, 12.0),
            ],
        )
        .counter(6)
        .checksum(Crc8),
        periodic(
            0x130,
            20,
            Brakes,
            6,
            &[w(0, Brake, 50.0, 0.0, 4.0), b(2, BrakeSwitch, 128.0, 1.0, 0.0), b(3, Brake, 1.0, 0.0, 0.2)],
        )
        .counter(4)
        .checksum(Xor),
        periodic(
            0x153,
            20,
            Transmission,
            8,
            &[
                b(0, Gear, 16.0, 1.0, 0.0),
                w(1, TurbineSpeed, 4.0, 0.0, 6.0),
                b(3, Shifting, 64.0, 3.0, 0.0),
                b(4, Torque, 0.5, 30.0, 0.6),
            ],
        )
        .counter(6)
        .checksum(Sum),
        periodic(
            0x160,
            20,
            Transmission,
            5,
            &[b(0, Shifting, 255.0, 0.0, 0.0), b(1, Gear, 1.0, 0.0, 0.0), b(2, TurbineSpeed, 0.03, 0.0, 0.3)],
        )
        .counter(3)
        .checksum(Xor),
        periodic(
            0x18F,
            20,
            Engine,
            8,
            &[
                b(0, Pedal, 2.5, 0.0, 0.4),
                b(1, Throttle, 2.5, 0.0, 0.5),
                b(2, Speed, 1.0, 0.0, 0.0),
                w(4, FuelRate, 200.0, 0.0, 10.0),
            ],
        )
        .constant(3, 0x3C),
        periodic(0x1A0, 20, Cluster, 4, &[b(0, Speed, 1.04, 2.0, 0.2), b(1, EngineSpeed, 0.02, 0.0, 0.2)])
            .counter(3)
            .constant(2, 0x80),
        periodic(0x1C8, 50, Airbag, 8, &[])
            .constant(0, 0x10)
            .constant(3, 0xFF)
            .constant(4, 0xFE)
            .counter(6)
            .checksum(Sum),
        periodic(0x1F1, 50, Body, 4, &[b(1, Headlights, 32.0, 4.0, 0.0)]).constant(0, 0x05).constant(3, 0xAA),
        periodic(
            0x220,
            20,
            Brakes,
            8,
            &[
                b(0, LongitudinalAcceleration, 12.0, 128.0, 2.0),
                b(1, LateralAcceleration, 12.0, 128.0, 2.0),
                w(2, WheelRearLeft, 50.0, 0.0, 4.0),
                b(4, Brake, 2.0, 0.0, 0.4),
            ],
        )
        .constant(5, 0x0F)
        .counter(6)
        .checksum(Xor),
        periodic(
            0x260,
            20,
            Engine,
            8,
            &[
                w(0, FuelRate, 400.0, 0.0, 20.0),
                b(2, Torque, 0.7, 50.0, 0.7),
                b(3, EngineSpeed, 0.03, 0.0, 0.2),
                b(5, CoolantTemperature, 1.3, 50.0, 0.2),
            ],
        )
        .constant(4, 0x21)
        .counter(7),
        periodic(
            0x2A0,
            20,
            Steering,
            6,
            &[w(0, SteeringTorque, 100.0, 32768.0, 10.0), w(2, SteeringAngle, 10.0, 32768.0, 1.0)],
        )
        .counter(4)
        .checksum(Sum),
        periodic(
            0x2C0,
            100,
            Body,
            6,
            &[b(0, Headlights, 1.0, 8.0, 0.0), b(1, TurnIndicator, 16.0, 0.0, 0.0), b(2, Wiper, 64.0, 0.0, 0.0)],
        )
        .constant(4, 0x55),
        periodic(
            0x316,
            50,
            Engine,
            8,
            &[w(0, EngineSpeed, 4.0, 0.0, 4.0), w(2, Speed, 64.0, 0.0, 2.0), b(5, Throttle, 2.5, 0.0, 0.5)],
        )
        .constant(4, 0x09)
        .constant(7, 0x7F),
        periodic(
            0x329,
            100,
            Engine,
            8,
            &[
                b(0, CoolantTemperature, 1.333, 64.0, 0.3),
                b(1, OilTemperature, 1.333, 64.0, 0.3),
                b(2, IntakeTemperature, 1.333, 64.0, 0.3),
                b(6, Brake, 1.0, 0.0, 0.0),
            ],
        )
        .constant(3, 0x8D)
        .counter(5),
        periodic(
            0x350,
            100,
            Climate,
            8,
            &[b(0, OutsideTemperature, 2.0, 80.0, 0.2), b(2, CoolantTemperature, 1.0, 40.0, 0.2)],
        )
        .constant(1, 0x2B)
        .constant(5, 0x84),
        periodic(
            0x370,
            50,
            Transmission,
            8,
            &[b(0, OilTemperature, 1.0, 40.0, 0.2), b(1, Gear, 32.0, 0.0, 0.0), b(2, Torque, 0.6, 30.0, 0.8)],
        )
        .constant(5, 0xFF)
        .counter(6)
        .checksum(Xor),
        periodic(0x3D0, 100, Body, 5, &[b(1, TurnIndicator, 1.0, 0.0, 0.0), b(2, Wiper, 1.0, 0.0, 0.0)])
            .constant(0, 0x40)
            .constant(4, 0x1E),
        periodic(
            0x410,
            200,
            Body,
            8,
            &[
                b(0, TirePressure, 60.0, 0.0, 0.4),
                b(1, TirePressure, 60.0, 1.0, 0.4),
                b(2, TirePressure, 59.5, 0.0, 0.4),
                b(3, TirePressure, 60.5, 0.0, 0.4),
            ],
        )
        .constant(7, 0xC3),
        periodic(
            0x430,
            100,
            Cluster,
            8,
            &[b(0, FuelLevel, 2.0, 0.0, 0.8), w(2, Odometer, 0.7, 0.0, 0.0), b(5, Speed, 1.04, 2.0, 0.0)],
        )
        .constant(1, 0x64),
        periodic(0x4B0, 200, Cluster, 6, &[b(1, Seconds, 0.05, 0.0, 0.0)]).constant(0, 0x07).counter(5),
        periodic(0x4F1, 500, Airbag, 8, &[])
            .constant(1, 0x4B)
            .constant(2, 0x4D)
            .constant(3, 0x48)
            .constant(4, 0x45)
            .constant(5, 0x43)
            .counter(0),
        periodic(0x52A, 1000, Cluster, 8, &[w(0, Seconds, 1.0, 0.0, 0.0), b(4, OutsideTemperature, 2.0, 80.0, 0.0)])
            .constant(2, 0x14)
            .constant(3, 0x0B),
        periodic(
            0x545,
            100,
            Engine,
            8,
            &[b(0, BatteryVoltage, 16.0, 0.0, 0.6), b(3, CoolantTemperature, 1.333, 64.0, 0.2)],
        )
        .constant(1, 0x24)
        .constant(5, 0x82),
        periodic(0x5A0, 1000, Airbag, 6, &[]).constant(0, 0x01).constant(2, 0x60).counter(5),
        sporadic(0x5F0, 6, 0, 0, Body, 4, &[b(1, Headlights, 1.0, 0.0, 0.0), b(2, TurnIndicator, 1.0, 0.0, 0.0)])
            .constant(0, 0xE1)
            .counter(3),
        sporadic(0x7DF, 20, 1, 0, Tester, 8, &[]).constant(0, 0x02).constant(1, 0x01).constant(2, 0x0C),
        sporadic(0x7E8, 20, 1, 12, Engine, 8, &[w(3, EngineSpeed, 4.0, 0.0, 2.0)])
            .constant(0, 0x04)
            .constant(1, 0x41)
            .constant(2, 0x0C),
    ]
};

const fn periodic(
    can_id: u32,
    milliseconds: u32,
    sender: ControlUnit,
    length: u8,
    fields: &'static [Field],
) -> Message {
    message(can_id, Sending::Periodic { milliseconds }, sender, length, fields)
}

const fn sporadic(
    can_id: u32,
    seconds: u32,
    cause: u8,
    delay_milliseconds: u32,
    sender: ControlUnit,
    length: u8,
    fields: &'static [Field],
) -> Message {
    message(can_id, Sending::Sporadic { seconds, cause, delay_milliseconds }, sender, length, fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_in_order_of_priority_and_fit_their_length() {
        assert!(MESSAGES.is_sorted_by(|first, second| first.can_id < second.can_id));
        for message in &MESSAGES {
            let body = usize::from(message.length) - usize::from(message.checksum != Checksum::None);
            let mut used = [false; 8];
            for field in message.fields {
                let bytes = field.byte..field.byte + 1 + usize::from(field.wide);
                assert!(bytes.end <= body, "{:03X}: bytes {bytes:?} lie outside", message.can_id);
                assert!(
                    used[bytes.clone()] == [false, false][..bytes.len()],
                    "{:03X}: {bytes:?} twice",
                    message.can_id
                );
                used[bytes].fill(true);
            }
            assert!(message.counter.is_none_or(|byte| byte < body && !used[byte]), "{:03X}", message.can_id);
        }
    }
}
