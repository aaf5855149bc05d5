//! Symbols of the chemical elements.

/// The symbols by atomic number, and deuterium and tritium.
const SYMBOLS: &str = "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb Mo \
                       Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg \
                       Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og \
                       D T";

/// The symbol that a text writes in any case; `None` for anything else.
pub(super) fn symbol(text: &str) -> Option<&'static str> {
    SYMBOLS.split_whitespace().find(|symbol| symbol.eq_ignore_ascii_case(text))
}

/// The largest atomic number.
pub(super) const HEAVIEST_ELEMENT: usize = 118;

/// The atomic number of the element that a text writes as its symbol in any case; that of hydrogen for its isotopes.
pub(super) fn atomic_number(text: &str) -> Option<u16> {
    let position = SYMBOLS.split_whitespace().position(|symbol| symbol.eq_ignore_ascii_case(text))?;
    // There are 120 symbols; deuterium and tritium follow the elements.
    Some(if position < HEAVIEST_ELEMENT { position as u16 + 1 } else { 1 })
}

/// The symbol of an atomic number.
pub(super) fn symbol_of(number: u16) -> Option<&'static str> {
    let place = usize::from(number).checked_sub(1).filter(|place| *place < HEAVIEST_ELEMENT)?;
    SYMBOLS.split_whitespace().nth(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_known_in_any_case() {
        assert_eq!(
            (symbol("o"), symbol("O"), symbol("CL"), symbol("cl")),
            (Some("O"), Some("O"), Some("Cl"), Some("Cl"))
        );
        assert_eq!((symbol("C1"), symbol("X"), symbol("")), (None, None, None));
        assert_eq!(SYMBOLS.split_whitespace().count(), HEAVIEST_ELEMENT + 2);
        assert_eq!(["h", "C", "Og", "D", "X"].map(atomic_number), [Some(1), Some(6), Some(118), Some(1), None]);
        assert_eq!([0, 1, 6, 118, 119].map(symbol_of), [None, Some("H"), Some("C"), Some("Og"), None]);
    }
}
