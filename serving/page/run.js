export function make() { return {}; }
