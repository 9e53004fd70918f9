//! Access tokens: whoever can make a handshake reaches their parser.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use canopy_token::{Claims, KeySet, Revocations, SigningKey, TokenError, UnixTime};

const NOW: UnixTime = UnixTime(1_800_000_000);

/// The first byte says whether the others are a token, or claims in a token whose signature is
/// nothing. What can be read as claims and can be signed is, once it is signed, read as the same.
pub fn token(input: &[u8]) {
    let Some((form, rest)) = input.split_first() else { return };
    let key = SigningKey::from_seed([1; 32]);
    let keys = KeySet::new([key.public().clone()], &[], NOW).expect("no delegations");
    let text = if form & 1 == 0 {
        String::from_utf8_lossy(rest).into_owned()
    } else {
        let payload = URL_SAFE_NO_PAD.encode([rest, &[0; 64]].concat());
        let footer = URL_SAFE_NO_PAD.encode(format!("{{\"kid\":\"{}\"}}", key.public().id()));
        format!("v4.public.{payload}.{footer}")
    };
    let verified = keys.verify(&text, NOW, &Revocations::new(0));
    assert!(form & 1 == 0 || verified.is_err(), "nobody has signed it");
    let Ok(claims) = Claims::read_unverified(&text) else { return };
    let Ok(signed) = key.issue(&claims) else { return };
    match keys.verify(&signed, NOW, &Revocations::new(0)) {
        Ok(verified) => assert_eq!(verified.claims, claims),
        Err(error) => assert!(
            matches!(error, TokenError::Expired(_) | TokenError::NotYetValid(_)),
            "{error} of what was signed: {claims:?}"
        ),
    }
}
