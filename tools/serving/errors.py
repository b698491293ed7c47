"""Errors as clients see them: OpenAI's error object, with an HTTP status."""

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(HTTPException):
    """A request that cannot be answered. `param` names the field that is wrong, if there is one."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    def body(self) -> dict:
        default = "server_error" if self.status_code >= 500 else "invalid_request_error"
        kind = TYPES.get(self.status_code, default)
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status_code, self.headers)


def too_many(message: str) -> ApiError:
    return ApiError(message, status=429, code="overloaded", headers={"Retry-After": "1"})
