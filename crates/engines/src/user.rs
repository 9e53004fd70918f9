//! Users by name and by number.

use std::ffi::CString;
use std::io;
use std::mem;
use std::ptr;

/// The user that this process runs as.
pub fn current_user() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The number of the user with this name, or None if there is no such user.
///
/// # Errors
/// If the system's list of users cannot be read.
pub fn user_named(name: &str) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut bytes = vec![0; 16 << 10];
    // SAFETY: all zeroes is a value of this struct of integers and pointers.
    let mut user: libc::passwd = unsafe { mem::zeroed() };
    let mut found = ptr::null_mut();
    // SAFETY: the name ends in zero; the others are written, with no more bytes than there are.
    let error = unsafe {
        let (bytes, len) = (bytes.as_mut_ptr(), bytes.len());
        libc::getpwnam_r(name.as_ptr(), &mut user, bytes, len, &mut found)
    };
    match error {
        0 => Ok((!found.is_null()).then_some(user.pw_uid)),
        // What some systems say where others say 0: no such user.
        libc::ENOENT | libc::ESRCH => Ok(None),
        _ => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_numbers() {
        assert_eq!(user_named("root").unwrap(), Some(0));
        assert_eq!(user_named("no-such-user-anywhere").unwrap(), None);
        assert_eq!(user_named("ro\0ot").unwrap(), None);
    }
}
