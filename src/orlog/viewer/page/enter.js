// The key of the address was used and leaves the address bar. Going on from a page of the viewer's own also lets the browser
// send the cookie when that is loaded again, wherever the address came from.
if (location.search) location.replace(location.pathname + location.hash);
