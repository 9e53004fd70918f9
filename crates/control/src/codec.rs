//! One compact form for what is stored and what is signalled. Input is hostile: reading never
//! panics, and never reserves memory for more than has arrived.

use canopy_plan::{Limits, Rate};
use canopy_wire::{Address, Comtree, Time};
use core::net::{IpAddr, SocketAddr};

/// Why bytes are no record or message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// They end too early.
    #[error("the bytes end within a {0}")]
    Short(&'static str),
    /// A field has a value that it cannot have.
    #[error("{0} has a value that is not allowed")]
    Value(&'static str),
    /// Something follows the end.
    #[error("{0} bytes follow the end")]
    Trailing(usize),
}

/// Records and messages are no longer than this for the most part.
pub(crate) const MOSTLY: usize = 128;

/// What has a compact form.
pub(crate) trait Coded: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads it off the front.
    fn take(from: &mut Reader<'_>) -> Result<Self, CodecError>;

    /// Its bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MOSTLY);
        self.put(&mut out);
        out
    }

    /// What these bytes are, to the last.
    fn of_bytes(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader(bytes);
        let value = Self::take(&mut reader)?;
        if reader.0.is_empty() { Ok(value) } else { Err(CodecError::Trailing(reader.0.len())) }
    }
}

/// Reads off the front of some bytes.
pub(crate) struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], CodecError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(CodecError::Short(what))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<Vec<u8>, CodecError> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(CodecError::Short("text"))?;
        self.0 = rest;
        Ok(head.to_vec())
    }

    /// A number in groups of seven bits, the lowest first.
    fn number(&mut self) -> Result<u64, CodecError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array("number")?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(CodecError::Value("number"));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(CodecError::Value("number"))
    }
}

impl Coded for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn take(from: &mut Reader<'_>) -> Result<u64, CodecError> {
        from.number()
    }
}

macro_rules! small_number {
    ($($number:ty),*) => { $(
        impl Coded for $number {
            fn put(&self, out: &mut Vec<u8>) {
                u64::from(*self).put(out);
            }

            fn take(from: &mut Reader<'_>) -> Result<$number, CodecError> {
                from.number()?.try_into().map_err(|_| CodecError::Value("number"))
            }
        }
    )* };
}

small_number!(u8, u16, u32);

impl Coded for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut Reader<'_>) -> Result<bool, CodecError> {
        match from.array("flag")? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(CodecError::Value("flag")),
        }
    }
}

impl<const N: usize> Coded for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(from: &mut Reader<'_>) -> Result<[u8; N], CodecError> {
        from.array("key")
    }
}

impl<T: Coded> Coded for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Option<T>, CodecError> {
        Ok(if bool::take(from)? { Some(T::take(from)?) } else { None })
    }
}

impl<T: Coded> Coded for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        self.iter().for_each(|one| one.put(out));
    }

    fn take(from: &mut Reader<'_>) -> Result<Vec<T>, CodecError> {
        // Grows as it is read, so a length that was made up costs nothing.
        let len = from.number()?;
        let mut all = Vec::new();
        for _ in 0..len {
            all.push(T::take(from)?);
        }
        Ok(all)
    }
}

impl Coded for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Result<String, CodecError> {
        let len = usize::try_from(from.number()?).map_err(|_| CodecError::Value("length"))?;
        String::from_utf8(from.bytes(len)?).map_err(|_| CodecError::Value("text"))
    }
}

impl Coded for Rate {
    fn put(&self, out: &mut Vec<u8>) {
        // Rates are whole numbers up to Rate::MOST; a sum of them may be more.
        (self.bits as u64).put(out);
        (self.packets as u64).put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Rate, CodecError> {
        let mut exact = || match from.number()? {
            number if number <= 1 << 53 => Ok(number as f64),
            _ => Err(CodecError::Value("rate")),
        };
        Ok(Rate { bits: exact()?, packets: exact()? })
    }
}

impl Coded for Time {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_nanos().put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Time, CodecError> {
        Ok(Time::from_nanos(from.number()?))
    }
}

impl Coded for SocketAddr {
    fn put(&self, out: &mut Vec<u8>) {
        match self.ip() {
            IpAddr::V4(ip) => {
                out.push(4);
                ip.octets().put(out);
            }
            IpAddr::V6(ip) => {
                out.push(6);
                ip.octets().put(out);
            }
        }
        self.port().put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<SocketAddr, CodecError> {
        let ip: IpAddr = match from.array("address")? {
            [4] => from.array::<4>("address")?.into(),
            [6] => from.array::<16>("address")?.into(),
            _ => return Err(CodecError::Value("address")),
        };
        Ok(SocketAddr::new(ip, u16::take(from)?))
    }
}

/// The compact form of a struct: its fields, one behind the other.
macro_rules! coded {
    ($($name:ident { $($field:tt),* })*) => { $(
        impl $crate::codec::Coded for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $( $crate::codec::Coded::put(&self.$field, out); )*
            }

            fn take(
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<$name, $crate::codec::CodecError> {
                Ok($name { $( $field: $crate::codec::Coded::take(from)? ),* })
            }
        }
    )* };
}

/// The compact form of an enum without fields: the number of the variant.
macro_rules! coded_enum {
    ($name:ident { $($variant:ident = $number:literal),* }) => {
        impl $crate::codec::Coded for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(match self { $( $name::$variant => $number ),* });
            }

            fn take(
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<$name, $crate::codec::CodecError> {
                match from.array(stringify!($name))? {
                    $( [$number] => Ok($name::$variant), )*
                    _ => Err($crate::codec::CodecError::Value(stringify!($name))),
                }
            }
        }
    };
}

pub(crate) use {coded, coded_enum};

coded! {
    Limits { send, receive }
    Comtree { 0 }
    Address { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn back<T: Coded + PartialEq + core::fmt::Debug>(value: T) {
        assert_eq!(T::of_bytes(&value.to_bytes()).as_ref(), Ok(&value));
    }

    #[test]
    fn what_was_written_is_read() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            back(number);
        }
        back(Some("name".to_owned()));
        back(vec![Rate { bits: 1e12, packets: 7.0 }]);
        back::<SocketAddr>("[::1]:7".parse().unwrap());
        back::<SocketAddr>("127.0.0.1:65535".parse().unwrap());
    }

    #[test]
    fn what_is_made_up_is_refused() {
        assert_eq!(u16::of_bytes(&[0xff, 0xff, 0x7f]), Err(CodecError::Value("number")));
        assert_eq!(u64::of_bytes(&[0xff; 11]), Err(CodecError::Value("number")));
        assert_eq!(bool::of_bytes(&[2]), Err(CodecError::Value("flag")));
        assert_eq!(bool::of_bytes(&[1, 0]), Err(CodecError::Trailing(1)));
        // A length of 2⁶³ without anything behind it.
        let endless = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(Vec::<u64>::of_bytes(&endless), Err(CodecError::Short("number")));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0xc0dec),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Vec::<Option<String>>::of_bytes(&bytes);
            let _ = Vec::<Limits>::of_bytes(&bytes);
            let _ = SocketAddr::of_bytes(&bytes);
        }
    }
}
